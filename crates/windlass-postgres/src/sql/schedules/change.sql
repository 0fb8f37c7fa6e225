-- Changes the schedule that still has the version $13, with its audit line. Answers how many.
with made as (
    update windlass.schedule s
    set id = $3, version = $4, spec = $5, input = $6, sealed = $7, paused = $8, next_at = $9, last_at = coalesce(s.last_at, $10),
        created_at = $11, changed_at = $12
    where s.tenant_id = $1 and s.name = $2 and s.version = $13
    returning 1
), noted as (
    insert into windlass.audit (tenant_id, actor, action, target)
    select $1, $14, $15, $2 from made
)
select count(*) from made
