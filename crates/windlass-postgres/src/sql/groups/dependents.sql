-- Jobs that wait for one of $1, or those of $2, or those after $3, by id, at most $4. edge_pkey, gated_id, gated_gate.
with c as (
    select e.child_id as id from windlass.edge e where e.parent_id = any ($1)
    union
    select x.id from unnest($2::bigint[]) x(id)
    union
    (select g.id from windlass.gated g where $3::bigint is not null and g.gate = 'parents:' and g.id > $3
     order by g.id limit $4)
)
select j.id, j.tenant_id, j.handler, j.spec
from c
join windlass.gated g on g.id = c.id and g.gate = 'parents:'
cross join lateral (select id, tenant_id, handler, spec from windlass.job where job.id = c.id offset 0) j
order by j.id limit $4
