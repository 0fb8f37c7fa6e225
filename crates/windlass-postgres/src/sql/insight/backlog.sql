-- What waits and runs by queue and handler, of tenant p_tenant (null for all), with the rights of whoever asks. Counts the jobs
-- of at most p_chunks chunks without reading them. Who they are for is looked up in `job`: for all of them where a queue has at
-- most p_jobs, else for one job of each of about as many chunks, the oldest included, which stands for its chunk. Of the
-- running ones at most p_running are looked at. Compiling the statement would take longer than running it.
create or replace function windlass.backlog(p_tenant uuid, p_chunks bigint, p_jobs bigint, p_running bigint, p_blocked bigint)
returns table (o_queue text, o_handler text, o_waiting bigint, o_since timestamptz, o_running bigint, o_blocked bigint) language plpgsql stable
set jit = off as $$
#variable_conflict use_column
declare
    v_blocked bigint := (select count(*) from windlass.gated g where p_tenant is null or g.tenant_id = p_tenant);
begin
    return query
    with c as materialized (
        select r.ctid as place, r.queue, r.first, cardinality(r.ids) as n
        from windlass.ready r where p_tenant is null or r.tenant_id = p_tenant limit p_chunks),
    q as materialized (
        select c.queue, sum(c.n) as waiting, count(*) as chunks, min(c.first) as oldest, sum(c.n) <= p_jobs as few
        from c group by c.queue),
    s as materialized (
        select c.queue, u.id, case when q.few then 1 else c.n end as n
        from c join q on q.queue = c.queue
        cross join lateral (select d.ids from windlass.ready d where d.ctid = c.place offset 0) r
        cross join lateral unnest(case when q.few then r.ids
            else array[r.ids[1 + abs(hashint8(c.first)::bigint) % cardinality(r.ids)]] end) u(id)
        where q.few or c.first = q.oldest or abs(hashint8(c.first)::bigint) % (1 + q.chunks / p_jobs) = 0),
    h as (
        select s.queue, j.handler, sum(s.n) as n, min(j.since) as since
        from s cross join lateral (
            select k.handler, greatest(coalesce(k.run_at, k.created_at),
                                       (select max(e.at) from windlass.event e where e.id = k.id)) as since
            from windlass.job k where k.id = s.id offset 0) j
        group by s.queue, j.handler),
    -- Spread over all of them: the first ones would be those of one key or of the oldest handler.
    b as (
        select j.queue, j.handler, count(*) as n
        from (select g.id from windlass.gated g where (p_tenant is null or g.tenant_id = p_tenant)
              and (v_blocked <= p_blocked or abs(hashint8(g.id)::bigint) % (1 + v_blocked / p_blocked) = 0)) x
        cross join lateral (select k.queue, k.handler from windlass.job k where k.id = x.id offset 0) j
        group by j.queue, j.handler)
    select h.queue, h.handler, round(q.waiting * h.n / sum(h.n) over (partition by h.queue))::bigint, h.since, 0::bigint,
           0::bigint
    from h join q on q.queue = h.queue
    union all
    select b.queue, b.handler, 0::bigint, null::timestamptz, 0::bigint,
           case when v_blocked <= p_blocked then b.n else round(b.n * v_blocked / sum(b.n) over ())::bigint end
    from b
    union all
    select j.queue, j.handler, 0::bigint, null::timestamptz, count(*), 0::bigint
    from (select x.id from windlass.running() x limit p_running) r
    cross join lateral (select k.queue, k.handler, k.tenant_id from windlass.job k where k.id = r.id offset 0) j
    where p_tenant is null or j.tenant_id = p_tenant
    group by j.queue, j.handler;
end $$;
