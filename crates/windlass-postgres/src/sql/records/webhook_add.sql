-- Keep a webhook, with its audit entry.
with w as (
    insert into windlass.webhook (id, tenant_id, url, events, handler, secret, sealed, created_by)
    values ($1, $2, $3, $4, $5, $6, $7, $8) returning created_at, active_since),
a as (
    insert into windlass.audit (tenant_id, actor, action, target, detail) values ($2, $8, 'WEBHOOK_ADDED', $1, $3))
select created_at, active_since from w
