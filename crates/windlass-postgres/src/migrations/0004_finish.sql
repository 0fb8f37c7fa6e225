-- How attempts end. The lease row decides: it is locked first, and what it holds then is what is accepted. A statement
-- that waited for it sees its newest version but an old snapshot of other tables, so nothing else decides. Leases are
-- found by their id; `node_id + 0` keeps the index by node out, which would read all that a node has held lately.

-- Locks leases of a node and says of each fence, in order, whether it holds, with the counts of its job and the reason of
-- a requested cancel, and the ids of the jobs that are held.
-- Nested loops are off: the planner does not know how long an array is, and comparing every job of a lease with every job
-- of a batch took seconds for two thousand. Only here and in shrink_leases, which call nothing: a function that is first
-- called under this setting keeps the plans made under it, and a key would be looked up by reading all keys.
create function windlass.hold(
    p_node bigint, p_leases bigint[], p_lease bigint[], p_id bigint[],
    out o_held boolean[], out o_failed integer[], out o_recoveries integer[], out o_cancel text[],
    out o_ids bigint[]
) language plpgsql
set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    with l as materialized (
        select l.lease_id, l.part, l.failed, l.recoveries, l.ids, l.canceled, l.cancel_reasons from windlass.lease l
        where l.lease_id = any (p_leases) and l.node_id + 0 = p_node order by l.lease_id, l.part for update),
    u as materialized (
        select l.lease_id, l.part, x.id, l.failed, l.recoveries,
               case when l.canceled = '{}' then null
                    else l.cancel_reasons[array_position(l.canceled, x.id)] end as cancel
        from l cross join unnest(l.ids) x(id)),
    a as materialized (
        select f.n, f.lease, u.part, f.id, u.id is not null as held, u.failed, u.recoveries, u.cancel
        from unnest(p_lease, p_id) with ordinality f(lease, id, n)
        left join u on u.lease_id = f.lease and u.id = f.id)
    select array_agg(a.held order by a.n), array_agg(a.failed order by a.n), array_agg(a.recoveries order by a.n),
           array_agg(a.cancel order by a.n), array_agg(a.id) filter (where a.held)
    into o_held, o_failed, o_recoveries, o_cancel, o_ids
    from a;
end $$;

-- Attempts that all succeeded, by parts of leases: jobs p_lo to p_hi of the list are part p_part of lease p_lease. A part
-- is accepted whole or not at all: it must hold all of them, and no cancel may have been requested in it. Given in the
-- order of the lease, all jobs of a part are recognised by one comparison. Answers the
-- accepted ones by their place; the others are for `finish`. p_keep: one for each job, or one for all. p_count_…: how
-- many jobs of a tenant are in a part. Calls nothing, so that its settings reach no other plan.
create function windlass.finish_succeeded(
    p_node bigint, p_lease bigint[], p_part smallint[], p_lo int[], p_hi int[], p_id bigint[], p_ran bigint[],
    p_keep bigint[], p_output json[], p_count_place int[], p_count_tenant uuid[], p_count_jobs bigint[]
) returns int[] language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_places int[]; v_failed integer[]; v_recoveries integer[]; v_whole tid[]; v_part int[];
    v_n int;
begin
    -- Locked first and changed after: a statement that waited for a lock would change the version it saw before.
    select coalesce(array_agg(a.n), '{}'), array_agg(a.failed), array_agg(a.recoveries),
           array_agg(a.ctid) filter (where a.whole), array_agg(a.n) filter (where not a.whole)
    into v_places, v_failed, v_recoveries, v_whole, v_part
    from (select u.n::int as n, l.ctid, l.failed, l.recoveries, l.ids = p_id[u.lo:u.hi] as whole, u.lo, u.hi, l.ids
          from unnest(p_lease, p_part, p_lo, p_hi) with ordinality u(lease, part, lo, hi, n)
          cross join lateral (select l.ctid, l.failed, l.recoveries, l.ids from windlass.lease l
                              where l.lease_id = u.lease and l.part = u.part and l.node_id + 0 = p_node
                                and l.canceled = '{}' for update) l) a
    where case when a.whole then true
               else cardinality(a.ids) > a.hi - a.lo + 1 and p_id[a.lo:a.hi] <@ a.ids end;
    if v_whole is not null then
        delete from windlass.lease l where l.ctid = any (v_whole);
        get diagnostics v_n = row_count;
        if v_n <> cardinality(v_whole) then
            -- Locked rows cannot go away; were it otherwise, ended jobs would run again.
            raise exception 'windlass: % of % ended parts were there', v_n, cardinality(v_whole) using errcode = '40001';
        end if;
    end if;
    if v_part is not null then
        foreach v_n in array v_part loop
            update windlass.lease l
            set ids = array(select x.id from unnest(l.ids) x(id) where x.id <> all (p_id[p_lo[v_n]:p_hi[v_n]]))
            where l.lease_id = p_lease[v_n] and l.part = p_part[v_n];
        end loop;
    end if;
    if cardinality(v_places) = cardinality(p_lease) and 0 = all (v_failed) and 0 = all (v_recoveries) then
        insert into windlass.outcome (id, finished_at, started_at, purge_at, node_id, status, attempt, failed,
                                      recoveries, output)
        select j.id, v_now, v_now - j.ran * interval '1 microsecond',
               v_now + coalesce(j.keep, p_keep[1]) * interval '1 microsecond', p_node, 6, 1, 0, 0, j.output
        from unnest(p_id, p_ran, p_keep, p_output) j(id, ran, keep, output);
    elsif v_places <> '{}' then
        insert into windlass.outcome (id, finished_at, started_at, purge_at, node_id, status, attempt, failed,
                                      recoveries, output)
        select j.id, v_now, v_now - j.ran * interval '1 microsecond',
               v_now + coalesce(j.keep, p_keep[1]) * interval '1 microsecond', p_node, 6,
               a.failed + a.recoveries + 1, a.failed, a.recoveries, j.output
        from unnest(v_places, v_failed, v_recoveries) a(place, failed, recoveries)
        join unnest(p_id, p_ran, p_keep, p_output) with ordinality j(id, ran, keep, output, n)
            on j.n between p_lo[a.place] and p_hi[a.place];
    end if;
    insert into windlass.counter_delta (tenants, statuses, counts)
    select array_agg(t.tenant), array_agg(6::smallint), array_agg(t.jobs)
    from (select c.tenant, sum(c.jobs)::bigint as jobs
          from unnest(p_count_place, p_count_tenant, p_count_jobs) c(place, tenant, jobs)
          where c.place = any (v_places) group by c.tenant) t
    having count(*) > 0;
    return v_places;
end $$;

-- Takes jobs out of leases that the caller has locked: used up parts go, the others keep the rest.
create function windlass.shrink_leases(p_leases bigint[], p_ids bigint[]) returns void language plpgsql
set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    with r as materialized (
        select k.lease_id, k.part, cardinality(k.ids) as jobs,
               array(select x.id from unnest(k.ids) x(id) where x.id <> all (p_ids)) as rest
        from windlass.lease k where k.lease_id = any (p_leases)),
    d as (
        delete from windlass.lease l using r
        where l.lease_id = any (p_leases) and l.lease_id = r.lease_id and l.part = r.part and r.rest = '{}')
    update windlass.lease l set ids = r.rest from r
    where l.lease_id = any (p_leases) and l.lease_id = r.lease_id and l.part = r.part and r.rest <> '{}'
      and cardinality(r.rest) < r.jobs;
end $$;

-- Attempts that ended in any way. p_op: 0 succeed, 1 retry, 2 dead letter, 3 cancel, 4 snooze, 5 release, 6 park,
-- 7 route. p_text: the reason, the gate or the queue. p_follow: [{"n": place, "job": job}].
create function windlass.finish(
    p_node bigint, p_leases bigint[], p_lease bigint[], p_id bigint[], p_attempt integer[], p_ran bigint[],
    p_op smallint[], p_keep bigint[], p_output json[], p_failed integer[], p_delay bigint[], p_text text[],
    p_error json[], p_follow json
) returns table (o_n int[], o_status smallint[]) language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    h record;
    v_n int[]; v_status smallint[];
    v_tenants uuid[]; v_statuses smallint[]; v_counts bigint[];
    v_ready record;
    v_follow json;
begin
    h := windlass.hold(p_node, p_leases, p_lease, p_id);
    if h.o_ids is null then
        return query select '{}'::int[], '{}'::smallint[];
        return;
    end if;
    with a as materialized (
        select f.n::int as n, f.id, f.attempt, v_now - f.ran * interval '1 microsecond' as started_at,
               case when f.cancel is null then f.op else 3 end as op, f.cancel,
               f.keep, f.output, f.failed_now, f.delay, f.text, f.error, f.failed, f.recoveries,
               j.tenant_id, j.queue, j.spec, j.created_at, windlass.rank_of(j.priority) as rank,
               case when f.recoveries > 0 then 'suspect:' || j.queue else j.queue end as own_queue
        from unnest(p_id, p_attempt, p_ran, p_op, p_keep, p_output, p_failed, p_delay, p_text, p_error,
                    h.o_held, h.o_failed, h.o_recoveries, h.o_cancel) with ordinality
             f(id, attempt, ran, op, keep, output, failed_now, delay, text, error, held, failed, recoveries, cancel, n)
        cross join lateral (select * from windlass.job where job.id = f.id offset 0) j
        where f.held),
    o as (
        insert into windlass.outcome (id, finished_at, started_at, purge_at, node_id, status, attempt, failed,
                                      recoveries, reason, output, error)
        select a.id, v_now, a.started_at,
               case when a.op <> 2 then v_now + coalesce(a.keep * interval '1 microsecond',
                    windlass.keep_of(a.spec)) end,
               p_node, (array[6, null, 8, 7])[a.op + 1], a.attempt, a.failed, a.recoveries,
               case when a.op in (2, 3) then coalesce(a.cancel, a.text) end,
               case when a.op = 0 then a.output end, a.error
        from a where a.op in (0, 2, 3)),
    s as (
        insert into windlass.scheduled (run_at, id, tenant_id, kind, rank, failed, recoveries, resumed, queue)
        select v_now + a.delay * interval '1 microsecond', a.id, a.tenant_id, case when a.op = 1 then 2 else 1 end,
               a.rank, coalesce(a.failed_now, a.failed), a.recoveries, true, a.own_queue
        from a where a.op in (1, 4)),
    g as (
        insert into windlass.gated (id, tenant_id, created_at, run_at, rank, failed, recoveries, resumed, queue, gate)
        select a.id, a.tenant_id, a.created_at, null, a.rank, a.failed, a.recoveries, true, a.own_queue, a.text
        from a where a.op = 6),
    e as (
        insert into windlass.event (id, at, started_at, node_id, status, attempt, failed, recoveries, error, note)
        select a.id, v_now, a.started_at, p_node, case when a.op = 1 then 2 else 1 end, a.attempt,
               coalesce(a.failed_now, a.failed), a.recoveries, a.error,
               case when a.op = 4 then 'snoozed until ' ||
                    to_char((v_now + a.delay * interval '1 microsecond') at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
               end
        from a where a.op in (1, 4)),
    u as (
        insert into windlass.audit (at, tenant_id, actor, action, target, detail)
        select v_now, a.tenant_id, 'windlass', 'JOB_EXHAUSTED_RETRIES', a.id::text, a.error ->> 'code'
        from a where a.op = 2 and a.text = 'max_retries'),
    t as (select a.tenant_id, (array[6, null, 8, 7])[a.op + 1]::smallint as status, count(*) as jobs
          from a where a.op in (0, 2, 3) group by 1, 2)
    select (select array_agg(a.n order by a.n) from a),
           (select array_agg((array[6, 2, 8, 7, 1, 0, 3, 0])[a.op + 1]::smallint order by a.n) from a),
           (select array_agg(t.tenant_id) from t), (select array_agg(t.status) from t),
           (select array_agg(t.jobs) from t)
    into v_n, v_status, v_tenants, v_statuses, v_counts;
    if p_op && array[5, 7]::smallint[] then
        for v_ready in
            select f.op, array_agg(f.id order by f.id) as ids,
                   array_agg(case when f.op = 7 then f.text when f.recoveries > 0 then 'suspect:' || j.queue
                                  else j.queue end order by f.id) as queues,
                   array_agg(windlass.rank_of(j.priority) order by f.id) as ranks,
                   array_agg(j.tenant_id order by f.id) as tenants, array_agg(f.failed order by f.id) as failed,
                   array_agg(f.recoveries order by f.id) as recoveries, array_agg(true) as resumed
            from unnest(p_id, p_op, p_text, h.o_held, h.o_failed, h.o_recoveries, h.o_cancel)
                 f(id, op, text, held, failed, recoveries, cancel)
            cross join lateral (select * from windlass.job where job.id = f.id offset 0) j
            where f.held and f.op in (5, 7) and f.cancel is null
            group by f.op
        loop
            perform windlass.make_ready(v_ready.ids, v_ready.queues, v_ready.ranks, v_ready.tenants, v_ready.failed,
                v_ready.recoveries, v_ready.resumed, v_ready.op = 5);
        end loop;
    end if;
    perform windlass.shrink_leases(p_leases, h.o_ids);
    if v_tenants is not null then
        insert into windlass.counter_delta (tenants, statuses, counts) values (v_tenants, v_statuses, v_counts);
    end if;
    if p_op && array[6]::smallint[] then
        perform windlass.open_own_gates(h.o_ids);
    end if;
    if p_follow is not null then
        select json_agg(f.value -> 'job') into v_follow
        from json_array_elements(p_follow) f
        join unnest(v_n, v_status) a(n, status) on a.n = (f.value ->> 'n')::int
        where a.status = (array[6, 2, 8, 7, 1, 0, 3, 0])[p_op[a.n] + 1];
        if v_follow is not null then
            -- Counted, never refused: it follows from work that was accepted.
            perform windlass.submit_jobs_within(v_follow, false, false);
        end if;
    end if;
    return query select v_n, v_status;
end $$;

-- How long an ended job is kept where its transition does not say: as long as it asks itself, else 14 days.
create function windlass.keep_of(p_spec json) returns interval language sql immutable as
$$ select coalesce(least((p_spec ->> 'retention')::numeric, 3e12)::float8 * interval '1 ms', interval '14 days') $$;

-- Jobs just parked behind an ordering key that nobody else holds are ready at once.
create function windlass.open_own_gates(p_ids bigint[]) returns void language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    g record;
    v_holder bigint;
begin
    for g in select * from windlass.gated d where d.id = any (p_ids) and d.gate like 'key:%'
             order by d.tenant_id, d.gate, d.id loop
        select k.id into v_holder from windlass.key_holder k
        where k.tenant_id = g.tenant_id and k.ordering_key = substr(g.gate, 5) for update;
        if not found or v_holder = g.id then
            delete from windlass.gated d where d.id = g.id;
            perform windlass.make_ready(array[g.id], array[g.queue], array[g.rank], array[g.tenant_id],
                array[g.failed], array[g.recoveries], array[true], true);
        end if;
    end loop;
end $$;

-- Passes on the ordering keys of jobs that have ended, each to the next in order of submission. Run after the end has committed, in
-- a transaction of its own: someone who is just submitting with the key holds its row, and must not hold up a finish.
-- What could not be locked in time is left to open_gates. Answers how many jobs became ready or scheduled.
create function windlass.pass_on_keys(p_tenants uuid[], p_keys text[]) returns int language plpgsql
set enable_seqscan = off set jit = off set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare
    k record;
    h record;
    g record;
    v_opened int := 0;
begin
    for k in select distinct u.tenant_id, u.ordering_key collate "C" as ordering_key
             from unnest(p_tenants, p_keys) u(tenant_id, ordering_key) order by 1, 2 loop
        begin
            select d.id into h from windlass.key_holder d
            where d.tenant_id = k.tenant_id and d.ordering_key = k.ordering_key for update;
            continue when not found;
            -- Only now, with the row locked, is what these statements see current.
            continue when not exists (select 1 from windlass.outcome o where o.id = h.id)
                and exists (select 1 from windlass.job j where j.id = h.id);
            loop
                select d.* into g from windlass.gated d
                where d.gate = 'key:' || k.ordering_key and d.tenant_id = k.tenant_id
                order by d.gate, d.tenant_id, d.created_at, d.id limit 1 for update;
                if not found then
                    delete from windlass.key_holder d
                    where d.tenant_id = k.tenant_id and d.ordering_key = k.ordering_key;
                    exit;
                end if;
                delete from windlass.gated d where d.id = g.id;
                v_opened := v_opened + 1;
                if g.run_at > clock_timestamp() then
                    insert into windlass.scheduled (run_at, id, tenant_id, kind, rank, failed, recoveries, resumed, queue)
                    values (g.run_at, g.id, g.tenant_id, 1, g.rank, g.failed, g.recoveries, g.resumed, g.queue);
                else
                    perform windlass.make_ready(array[g.id], array[g.queue], array[g.rank], array[g.tenant_id],
                        array[g.failed], array[g.recoveries], array[g.resumed], false);
                end if;
                -- A job that was parked behind a key that is not its own goes on without holding it.
                if exists (select 1 from windlass.job j where j.id = g.id and j.ordering_key = k.ordering_key) then
                    update windlass.key_holder d set id = g.id
                    where d.tenant_id = k.tenant_id and d.ordering_key = k.ordering_key;
                    exit;
                end if;
            end loop;
        exception when lock_not_available then
            null;
        end;
    end loop;
    return v_opened;
end $$;

-- The same, for the keys of these jobs.
create function windlass.pass_on(p_ids bigint[]) returns int language sql as
$$ select windlass.pass_on_keys(array_agg(j.tenant_id), array_agg(j.ordering_key))
   from unnest(p_ids) x(id)
   cross join lateral (select tenant_id, ordering_key from windlass.job where job.id = x.id offset 0) j
   where j.ordering_key is not null $$;

-- Keeps the latest progress of jobs that are still held. Answers the places of those.
create function windlass.report_progress(
    p_node bigint, p_leases bigint[], p_lease bigint[], p_id bigint[], p_sequence bigint[], p_percent real[],
    p_message text[]
) returns int[] language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_n int[];
begin
    perform set_config('synchronous_commit', 'off', true);
    with l as materialized (
        select l.lease_id, l.ids from windlass.lease l
        where l.lease_id = any (p_leases) and l.node_id + 0 = p_node order by l.lease_id, l.part for update),
    a as materialized (
        select f.* from l
        join unnest(p_lease, p_id, p_sequence, p_percent, p_message) with ordinality
             f(lease, id, sequence, percent, message, n) on f.lease = l.lease_id and f.id = any (l.ids)),
    p as (
        insert into windlass.progress (id, sequence, percent, message)
        select distinct on (a.id) a.id, a.sequence, a.percent, a.message from a order by a.id, a.n desc
        on conflict (id) do update
        set sequence = excluded.sequence, percent = excluded.percent, message = excluded.message)
    select array_agg(a.n::int) into v_n from a;
    return coalesce(v_n, '{}');
end $$;

-- Keeps a checkpoint of a job that is still held.
create function windlass.save_checkpoint(p_node bigint, p_lease bigint, p_id bigint, p_data json) returns boolean
language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
begin
    perform 1 from windlass.lease l
    where l.lease_id = p_lease and l.node_id + 0 = p_node and p_id = any (l.ids) for update;
    if not found then
        return false;
    end if;
    insert into windlass.checkpoint as c (id, data) values (p_id, p_data)
    on conflict (id) do update set data = excluded.data;
    return true;
end $$;
