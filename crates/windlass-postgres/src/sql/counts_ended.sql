-- Jobs that have ended, of tenant $1 (null for all), by status. counter_pkey; deltas are folded every few seconds.
select status, sum(n)::bigint as n from (
    select status, n from windlass.counter where $1::uuid is null or tenant_id = $1
    union all
    select d.status, d.n from windlass.deltas($1) d) c
group by status
