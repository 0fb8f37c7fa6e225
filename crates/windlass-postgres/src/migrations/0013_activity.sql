-- The past, for charts: counts that nodes add up, in buckets of several lengths (resolution, in seconds), and how many jobs
-- were in each status. Nothing depends on it, so it is written without waiting for the disk.

-- A row without a tenant is of all tenants together, which operators read. `sums` are the numbers of `Sums::values`.
create table windlass.activity (
    at timestamptz not null,
    tenant_id uuid,
    resolution smallint not null,
    handler text collate "C" not null,
    sums bigint[] not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
create unique index activity_key on windlass.activity (resolution, tenant_id, at, handler) nulls not distinct;
create index activity_at on windlass.activity (resolution, at);

-- All tenants together, by status.
create table windlass.depth (
    at timestamptz not null,
    resolution smallint not null,
    counts bigint[] not null,
    primary key (resolution, at)
);

create function windlass.add_numbers(p_a bigint[], p_b bigint[]) returns bigint[] language sql immutable as
$$ select array_agg(coalesce(u.a, 0) + coalesce(u.b, 0) order by u.n) from unnest(p_a, p_b) with ordinality u(a, b, n) $$;

-- Adds to one bucket of each resolution. p_sums has the numbers of one tenant and handler after the other. Sorted, so that
-- two nodes cannot wait for each other.
create function windlass.add_activity(
    p_at timestamptz, p_resolutions smallint[], p_tenants uuid[], p_handlers text[], p_sums bigint[]
) returns void language plpgsql as $$
#variable_conflict use_column
declare
    v_width int := cardinality(p_sums) / greatest(cardinality(p_handlers), 1);
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into windlass.activity as a (at, tenant_id, resolution, handler, sums)
    select date_bin(make_interval(secs => r.seconds), p_at, 'epoch'), t.tenant_id, r.seconds, t.handler,
           p_sums[(t.n - 1) * v_width + 1 : t.n * v_width]
    from unnest(p_tenants, p_handlers) with ordinality t(tenant_id, handler, n)
    cross join unnest(p_resolutions) r(seconds)
    order by r.seconds, t.tenant_id, t.handler collate "C"
    on conflict (resolution, tenant_id, at, handler) do update set sums = windlass.add_numbers(a.sums, excluded.sums);
end $$;

-- Counts jobs by status for the present bucket of each resolution, unless somebody has done so for the finest one. Reads
-- what waits and runs; ended jobs are counted already.
create function windlass.sample_depth(p_resolutions smallint[]) returns void language plpgsql
set jit = off as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_finest smallint := (select min(r.seconds) from unnest(p_resolutions) r(seconds));
    v_counts bigint[];
begin
    if exists (select 1 from windlass.depth d where d.resolution = v_finest
               and d.at = date_bin(make_interval(secs => v_finest), v_now, 'epoch')) then
        return;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    select array_agg(coalesce(c.n, 0) order by s.code) into v_counts
    from generate_series(0, 8) s(code)
    left join (select l.status, sum(l.n)::bigint as n from (
                   select 0::smallint as status, coalesce(sum(cardinality(ids)), 0)::bigint as n from windlass.ready
                   union all select kind, count(*) from windlass.scheduled group by kind
                   union all select 3::smallint, count(*) from windlass.gated
                   union all select 5::smallint, coalesce(sum(cardinality(ids)), 0)::bigint from windlass.lease
                   union all select status, n from windlass.counter
                   union all select d.status, d.n from windlass.deltas(null) d) l
               group by l.status) c on c.status = s.code;
    insert into windlass.depth (at, resolution, counts)
    select date_bin(make_interval(secs => r.seconds), v_now, 'epoch'), r.seconds, v_counts
    from unnest(p_resolutions) r(seconds) order by r.seconds
    on conflict do nothing;
end $$;

-- Removes buckets whose time is over, at most p_limit rows. Answers how many.
create function windlass.clean_activity(p_resolutions smallint[], p_keep float8[], p_limit int) returns int
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    -- Read once: compared with the clock itself, every row would be looked at.
    v_now timestamptz := clock_timestamp();
    v_removed int; v_depths int;
begin
    perform set_config('synchronous_commit', 'off', true);
    delete from windlass.activity a where a.ctid = any (array(
        select o.place from unnest(p_resolutions, p_keep) r(seconds, keep)
        cross join lateral (select b.ctid as place from windlass.activity b
                            where b.resolution = r.seconds and b.at < v_now - make_interval(secs => r.keep)
                            order by b.resolution, b.at limit p_limit for update skip locked) o
        limit p_limit));
    get diagnostics v_removed = row_count;
    delete from windlass.depth d using unnest(p_resolutions, p_keep) r(seconds, keep)
    where d.resolution = r.seconds and d.at < v_now - make_interval(secs => r.keep);
    get diagnostics v_depths = row_count;
    return least(v_removed + v_depths, p_limit);
end $$;

-- What waits and runs by queue and handler, of tenant p_tenant (null for all), with the rights of whoever asks. Counts the jobs
-- of at most p_chunks chunks without reading them. Who they are for is looked up in `job`: for all of them where a queue has at
-- most p_jobs, else for one job of each of about as many chunks, the oldest included, which stands for its chunk. Of the
-- running ones at most p_running are looked at. Compiling the statement would take longer than running it.
create function windlass.backlog(p_tenant uuid, p_chunks bigint, p_jobs bigint, p_running bigint)
returns table (o_queue text, o_handler text, o_waiting bigint, o_since timestamptz, o_running bigint) language plpgsql stable
set jit = off as $$
#variable_conflict use_column
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
        group by s.queue, j.handler)
    select h.queue, h.handler, round(q.waiting * h.n / sum(h.n) over (partition by h.queue))::bigint, h.since, 0::bigint
    from h join q on q.queue = h.queue
    union all
    select j.queue, j.handler, 0::bigint, null::timestamptz, count(*)
    from (select x.id from windlass.running() x limit p_running) r
    cross join lateral (select k.queue, k.handler, k.tenant_id from windlass.job k where k.id = r.id offset 0) j
    where p_tenant is null or j.tenant_id = p_tenant
    group by j.queue, j.handler;
end $$;
