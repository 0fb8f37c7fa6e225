-- Pause webhook $2 of tenant $1, or of any, or let it go on, active since now, with its audit entry if that changes anything.
with k as (
    select id, tenant_id, url, paused from windlass.webhook where id = $2 and ($1::uuid is null or tenant_id = $1) for update),
w as (
    update windlass.webhook h
    set paused = $3, active_since = case when $3 then h.active_since else clock_timestamp() end
    from k where h.id = k.id and k.paused <> $3 returning k.tenant_id, k.url),
a as (
    insert into windlass.audit (tenant_id, actor, action, target, detail)
    select w.tenant_id, $4, case when $3 then 'WEBHOOK_PAUSED' else 'WEBHOOK_RESUMED' end, $2, w.url from w)
select count(*) from k
