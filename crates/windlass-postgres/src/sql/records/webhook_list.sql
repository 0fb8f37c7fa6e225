-- The webhooks of tenant $1, or of all, oldest first; webhook_tenant.
select id, tenant_id, url, events, handler, secret, sealed, paused, created_at, created_by, active_since
from windlass.webhook where $1::uuid is null or tenant_id = $1 order by created_at, id
