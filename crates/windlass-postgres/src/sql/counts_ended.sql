-- Jobs that have ended, of tenant $1 (null for all), by status. counter_pkey; deltas are folded every few seconds.
select status, sum(n)::bigint as n from (
    select status, n from windlass.counter where $1::uuid is null or tenant_id = $1
    union all
    select u.status, u.n from windlass.counter_delta d
    cross join unnest(d.tenants, d.statuses, d.counts) u(tenant_id, status, n)
    where $1::uuid is null or u.tenant_id = $1) c
group by status
