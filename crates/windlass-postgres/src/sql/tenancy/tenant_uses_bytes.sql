-- Unfinished and running jobs by tenant ($1, null for all), with their payloads' bytes. Reads every unfinished job: only
-- where a policy limits bytes.
with l as materialized (
    select r.tenant_id, x.id, false as runs from windlass.ready r cross join unnest(r.ids) x(id)
    where $1::uuid is null or r.tenant_id = $1
    union all select s.tenant_id, s.id, false from windlass.scheduled s where $1::uuid is null or s.tenant_id = $1
    union all select g.tenant_id, g.id, false from windlass.gated g where $1::uuid is null or g.tenant_id = $1
    union all select j.tenant_id, x.id, true from windlass.lease l cross join unnest(l.ids) x(id)
              cross join lateral (select tenant_id from windlass.job where job.id = x.id offset 0) j
              where $1::uuid is null or j.tenant_id = $1)
select l.tenant_id, count(*) as queued, count(*) filter (where l.runs) as running,
       sum((select octet_length(j.payload::text) from windlass.job j where j.id = l.id))::bigint as bytes
from l group by l.tenant_id order by l.tenant_id
