-- Stores a schedule that does not exist, if its tenant has fewer than $13 of them, with its audit line. Answers how many.
with made as (
    insert into windlass.schedule (tenant_id, name, id, version, spec, input, sealed, paused, next_at, last_at, created_at, changed_at)
    select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12
    where (select count(*) from windlass.schedule s where s.tenant_id = $1) < $13
    on conflict do nothing
    returning 1
), noted as (
    insert into windlass.audit (tenant_id, actor, action, target)
    select $1, $14, $15, $2 from made
)
select count(*) from made
