-- A tenant's jobs that have ended, ever. One statement, so that a fold under way is seen whole or not at all.
create or replace function windlass.ended_of(p_tenant uuid) returns bigint language sql stable as
$$ select coalesce((select sum(c.n) from windlass.counter c where c.tenant_id = p_tenant), 0)::bigint
        + coalesce((select sum(u.n) from windlass.counter_delta d
                    cross join unnest(d.tenants, d.counts) u(tenant_id, n)
                    where d.tenants @> array[p_tenant] and u.tenant_id = p_tenant), 0)::bigint $$;

-- The ids of a tenant's unfinished jobs. Reads the live tables whole: no index leads from a tenant to its jobs there.
create or replace function windlass.unfinished_of(p_tenant uuid) returns setof bigint language sql stable as
$$ select x.id from windlass.ready r cross join unnest(r.ids) x(id) where r.tenant_id = p_tenant
   union all select s.id from windlass.scheduled s where s.tenant_id = p_tenant
   union all select g.id from windlass.gated g where g.tenant_id = p_tenant
   union all select x.id from windlass.lease l cross join unnest(l.ids) x(id)
             cross join lateral (select tenant_id from windlass.job where job.id = x.id offset 0) j
             where j.tenant_id = p_tenant $$;

create or replace function windlass.unfinished_bytes(p_tenant uuid) returns bigint language sql stable as
$$ select coalesce(sum(j.bytes), 0)::bigint from windlass.unfinished_of(p_tenant) u(id)
   cross join lateral (select octet_length(payload::text) as bytes from windlass.job where job.id = u.id offset 0) j $$;
