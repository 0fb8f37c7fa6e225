-- Removes the schedule that still has the version $3, with its audit line. Answers how many.
with made as (
    delete from windlass.schedule s where s.tenant_id = $1 and s.name = $2 and s.version = $3 returning 1
), noted as (
    insert into windlass.audit (tenant_id, actor, action, target)
    select $1, $4, $5, $2 from made
)
select count(*) from made
