-- Schedules of tenant $1 (null for all) with name $2 (null for any), after tenant $3 and name $4 if given, at most $5.
select s.tenant_id, s.name, s.id, s.version, s.spec, s.input, s.sealed, s.paused, s.next_at, s.last_at, s.created_at,
       s.changed_at, clock_timestamp()
from windlass.schedule s
where ($1::uuid is null or s.tenant_id = $1) and ($2::text is null or s.name = $2)
  and ($3::uuid is null or (s.tenant_id, s.name) > ($3, $4))
order by s.tenant_id, s.name limit $5
