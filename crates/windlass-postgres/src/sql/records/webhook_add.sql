-- Keep a webhook, with its audit entry. Active since the moment it was created, and not since one before.
with t as materialized (select clock_timestamp() as now),
w as (
    insert into windlass.webhook (id, tenant_id, url, events, handler, secret, sealed, created_by, created_at, active_since)
    select $1, $2, $3, $4, $5, $6, $7, $8, t.now, t.now from t returning created_at, active_since),
a as (
    insert into windlass.audit (tenant_id, actor, action, target, detail) values ($2, $8, 'WEBHOOK_ADDED', $1, $3))
select created_at, active_since from w
