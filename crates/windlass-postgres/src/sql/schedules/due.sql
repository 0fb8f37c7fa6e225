-- The schedules that are due, the longest first, at most $1; and when the next one after them is due. schedule_due.
with t as materialized (select clock_timestamp() as now),
due as materialized (
    select s.* from windlass.schedule s
    where not s.paused and s.next_at is not null and s.next_at <= (select t.now from t)
    order by s.next_at, s.id limit $1
)
select s.tenant_id, s.name, s.id, s.version, s.spec, s.input, s.sealed, s.paused, s.next_at, s.last_at, s.created_at,
       s.changed_at, t.now,
       (select n.next_at from windlass.schedule n where not n.paused and n.next_at is not null
        order by n.next_at, n.id offset (select count(*) from due) limit 1)
from t left join due s on true
order by s.next_at, s.id
