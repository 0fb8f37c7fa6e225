-- Unfinished and running jobs by tenant ($1, null for all). Reads all live tables; a chunk of ready jobs is one row.
select c.tenant_id, sum(c.queued)::bigint as queued, sum(c.running)::bigint as running, null::bigint as bytes
from (select r.tenant_id, sum(cardinality(r.ids)) as queued, 0 as running from windlass.ready r
      where $1::uuid is null or r.tenant_id = $1 group by r.tenant_id
      union all select s.tenant_id, count(*), 0 from windlass.scheduled s
      where $1::uuid is null or s.tenant_id = $1 group by s.tenant_id
      union all select g.tenant_id, count(*), 0 from windlass.gated g
      where $1::uuid is null or g.tenant_id = $1 group by g.tenant_id
      union all select j.tenant_id, count(*), count(*) from windlass.lease l cross join unnest(l.ids) x(id)
      cross join lateral (select tenant_id from windlass.job where job.id = x.id offset 0) j
      where $1::uuid is null or j.tenant_id = $1 group by j.tenant_id) c
group by c.tenant_id order by c.tenant_id
