-- Remove webhook $2 of tenant $1, or of any, with its audit entry.
with w as (
    delete from windlass.webhook where id = $2 and ($1::uuid is null or tenant_id = $1) returning tenant_id, url),
a as (
    insert into windlass.audit (tenant_id, actor, action, target, detail)
    select w.tenant_id, $3, 'WEBHOOK_REMOVED', $2, w.url from w)
select count(*) from w
