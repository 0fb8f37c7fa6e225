-- The API keys of tenant $1, or of all, newest first, at most $2; api_key_tenant. Without the hash: behind the wall
-- nobody may read it.
select id, tenant_id, home, name, acts_as, rights, created_at, created_by, expires_at, revoked_at, last_used_at
from windlass.api_key where $1::uuid is null or tenant_id = $1 order by created_at desc, id limit $2
