-- The API keys with the ids of the list ?1, with their hashes.
SELECT id, tenant, home, name, acts_as, rights, created_at, created_by, expires_at, revoked_at, last_used_at, hash
FROM windlass_api_key WHERE id IN (SELECT value FROM json_each(?1))
