-- The webhooks of tenant ?1, or of all, oldest first; windlass_webhook_by_tenant.
SELECT id, tenant, url, events, handler, secret, sealed, paused, created_at, created_by, active_since
FROM windlass_webhook WHERE ?1 IS NULL OR tenant = ?1 ORDER BY n
