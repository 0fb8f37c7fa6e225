-- The API keys of tenant ?1, or of all, newest first, at most ?2; windlass_api_key_by_tenant.
SELECT id, tenant, home, name, acts_as, rights, created_at, created_by, expires_at, revoked_at, last_used_at
FROM windlass_api_key WHERE ?1 IS NULL OR tenant = ?1 ORDER BY n DESC LIMIT ?2
