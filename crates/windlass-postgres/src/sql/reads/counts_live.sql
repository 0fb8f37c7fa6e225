-- Jobs that wait or run, of tenant $1 (null for all), by status. The live tables are read whole: they hold no history.
select 0::smallint as status, coalesce(sum(cardinality(ids)), 0)::bigint as n
from windlass.ready where $1::uuid is null or tenant_id = $1
union all
select kind, count(*) from windlass.scheduled where $1::uuid is null or tenant_id = $1 group by kind
union all
select 3::smallint, count(*) from windlass.gated where $1::uuid is null or tenant_id = $1
union all
select 5::smallint, count(*) from windlass.running() r where $1::uuid is null
union all
select 5::smallint, count(*) from windlass.running() r
cross join lateral (select tenant_id from windlass.job where job.id = r.id offset 0) j
where $1::uuid is not null and j.tenant_id = $1
