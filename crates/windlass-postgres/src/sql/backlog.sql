-- What waits and runs by queue and handler, of tenant $1 (null for all). Counts the jobs of at most $2 chunks without reading
-- them. Who they are for is looked up in job: for all of them where a queue has at most $3, else for one job of each of about
-- as many chunks, the oldest included, which stands for its chunk. Of the running ones at most $4 are looked at.
with c as materialized (
    select r.ctid as place, r.queue, r.first, cardinality(r.ids) as n
    from windlass.ready r where $1::uuid is null or r.tenant_id = $1 limit $2),
q as materialized (
    select c.queue, sum(c.n) as waiting, count(*) as chunks, min(c.first) as oldest, sum(c.n) <= $3 as few
    from c group by c.queue),
s as materialized (
    select c.queue, u.id, case when q.few then 1 else c.n end as n
    from c join q on q.queue = c.queue
    join windlass.ready r on r.ctid = c.place
    cross join lateral unnest(case when q.few then r.ids
        else array[r.ids[1 + abs(hashint8(c.first)::bigint) % cardinality(r.ids)]] end) u(id)
    where q.few or c.first = q.oldest or abs(hashint8(c.first)::bigint) % (1 + q.chunks / $3) = 0),
h as (
    select s.queue, j.handler, sum(s.n) as n, min(j.since) as since
    from s cross join lateral (
        select k.handler, greatest(coalesce(k.run_at, k.created_at),
                                   (select max(e.at) from windlass.event e where e.id = k.id)) as since
        from windlass.job k where k.id = s.id offset 0) j
    group by s.queue, j.handler)
select h.queue, h.handler, round(q.waiting * h.n / sum(h.n) over (partition by h.queue))::bigint as waiting, h.since,
       0::bigint as running
from h join q on q.queue = h.queue
union all
select j.queue, j.handler, 0, null, count(*)
from (select id from windlass.running() limit $4) r
cross join lateral (select k.queue, k.handler, k.tenant_id from windlass.job k where k.id = r.id offset 0) j
where $1::uuid is null or j.tenant_id = $1
group by j.queue, j.handler
