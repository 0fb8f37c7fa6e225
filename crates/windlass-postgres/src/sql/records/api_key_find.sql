-- The API keys with ids $1, with their hashes; api_key_pkey.
select id, tenant_id, home, name, acts_as, rights, created_at, created_by, expires_at, revoked_at, last_used_at, hash
from windlass.api_key where id = any ($1)
