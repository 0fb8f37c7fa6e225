-- How attempts end. The lease row decides: it is locked first, and what it holds then is what is accepted. A statement
-- that waited for it sees its newest version but an old snapshot of other tables, so nothing else decides.

-- Nested loops are off where two lists of jobs meet: the planner does not know how long an array is, and comparing every
-- job of a lease with every job of a batch took seconds for two thousand.
-- Attempts that all succeeded. Answers the accepted ones by their place, with their status (7 where a cancel came
-- first), and which jobs have an ordering key to pass on among those whose tenant the caller did not know.
create function windlass.finish_succeeded(
    p_node bigint, p_leases bigint[], p_lease bigint[], p_id bigint[], p_attempt integer[], p_ran bigint[],
    p_tenant uuid[], p_keep bigint[], p_output json[]
) returns table (o_n int[], o_status smallint[]) language plpgsql
set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_n int[]; v_status smallint[]; v_ids bigint[]; v_whole bigint[]; v_part bigint[];
    v_tenants uuid[]; v_statuses smallint[]; v_counts bigint[];
begin
    with l as materialized (
        select l.lease_id, l.ids, l.failed, l.recoveries, l.canceled, l.cancel_reasons from windlass.lease l
        where l.lease_id = any (p_leases) and l.node_id = p_node order by l.lease_id for update),
    a as materialized (
        select f.n::int as n, f.lease, f.id, f.attempt, f.ran, f.keep, f.output, x.failed, x.recoveries,
               coalesce(f.tenant, (select j.tenant_id from windlass.job j where j.id = f.id)) as tenant,
               case when l.canceled = '{}' then null else l.cancel_reasons[array_position(l.canceled, f.id)] end as cancel
        from l cross join unnest(l.ids, l.failed, l.recoveries) x(id, failed, recoveries)
        join unnest(p_lease, p_id, p_attempt, p_ran, p_tenant, p_keep, p_output) with ordinality
             f(lease, id, attempt, ran, tenant, keep, output, n) on f.lease = l.lease_id and f.id = x.id),
    o as (
        insert into windlass.outcome (id, finished_at, started_at, purge_at, node_id, status, attempt, failed,
                                      recoveries, reason, output)
        select a.id, v_now, v_now - a.ran * interval '1 microsecond', v_now + a.keep * interval '1 microsecond', p_node,
               case when a.cancel is null then 6 else 7 end, a.attempt, a.failed, a.recoveries, a.cancel,
               case when a.cancel is null then a.output end
        from a),
    w as (select a.lease, count(*) as jobs from a group by a.lease),
    t as (select a.tenant, case when a.cancel is null then 6::smallint else 7::smallint end as status, count(*) as jobs
          from a group by 1, 2)
    select (select array_agg(a.n) from a),
           (select array_agg(case when a.cancel is null then 6::smallint else 7::smallint end) from a),
           (select array_agg(a.id) from a),
           (select array_agg(w.lease) from w join l on l.lease_id = w.lease where w.jobs = cardinality(l.ids)),
           (select array_agg(w.lease) from w join l on l.lease_id = w.lease where w.jobs < cardinality(l.ids)),
           (select array_agg(t.tenant) from t), (select array_agg(t.status) from t), (select array_agg(t.jobs) from t)
    into v_n, v_status, v_ids, v_whole, v_part, v_tenants, v_statuses, v_counts;
    if v_n is not null then
        perform windlass.shrink_leases(v_whole, v_part, v_ids);
        insert into windlass.counter_delta (tenants, statuses, counts) values (v_tenants, v_statuses, v_counts);
    end if;
    return query select coalesce(v_n, '{}'), coalesce(v_status, '{}');
end $$;

-- Takes jobs out of leases that the caller has locked: whole ones go, the others keep the rest of their own rows.
create function windlass.shrink_leases(p_whole bigint[], p_part bigint[], p_ids bigint[]) returns void
language plpgsql set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
begin
    if p_whole is not null then
        delete from windlass.lease l where l.lease_id = any (p_whole);
    end if;
    if p_part is not null then
        update windlass.lease l set ids = r.ids, failed = r.failed, recoveries = r.recoveries
        from (select k.lease_id, array_agg(x.id order by x.n) as ids, array_agg(x.failed order by x.n) as failed,
                     array_agg(x.recoveries order by x.n) as recoveries
              from windlass.lease k cross join unnest(k.ids, k.failed, k.recoveries) with ordinality
                   x(id, failed, recoveries, n)
              where k.lease_id = any (p_part) and not exists (select 1 from unnest(p_ids) d(id) where d.id = x.id)
              group by k.lease_id) r
        where l.lease_id = r.lease_id and l.lease_id = any (p_part);
    end if;
end $$;

-- Attempts that ended in any way. p_op: 0 succeed, 1 retry, 2 dead letter, 3 cancel, 4 snooze, 5 release, 6 park,
-- 7 route. p_text: the reason, the gate or the queue. p_follow: [{"n": place, "job": job}].
create function windlass.finish(
    p_node bigint, p_leases bigint[], p_lease bigint[], p_id bigint[], p_attempt integer[], p_ran bigint[],
    p_op smallint[], p_keep bigint[], p_output json[], p_failed integer[], p_delay bigint[], p_text text[],
    p_error json[], p_follow json
) returns table (o_n int[], o_status smallint[]) language plpgsql
set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_n int[]; v_status smallint[]; v_ids bigint[]; v_whole bigint[]; v_part bigint[];
    v_tenants uuid[]; v_statuses smallint[]; v_counts bigint[];
    v_ready record;
    v_follow json;
begin
    with l as materialized (
        select l.lease_id, l.ids, l.failed, l.recoveries, l.canceled, l.cancel_reasons from windlass.lease l
        where l.lease_id = any (p_leases) and l.node_id = p_node order by l.lease_id for update),
    a as materialized (
        select f.n::int as n, f.lease, f.id, f.attempt, v_now - f.ran * interval '1 microsecond' as started_at,
               case when c.cancel is null then f.op else 3 end as op, c.cancel,
               f.keep, f.output, f.failed as failed_now, f.delay, f.text, f.error, x.failed, x.recoveries,
               j.tenant_id, j.queue, j.spec, j.created_at, windlass.rank_of(j.priority) as rank,
               case when x.recoveries > 0 then 'suspect:' || j.queue else j.queue end as own_queue
        from l cross join unnest(l.ids, l.failed, l.recoveries) x(id, failed, recoveries)
        join unnest(p_lease, p_id, p_attempt, p_ran, p_op, p_keep, p_output, p_failed, p_delay, p_text, p_error)
             with ordinality f(lease, id, attempt, ran, op, keep, output, failed, delay, text, error, n)
             on f.lease = l.lease_id and f.id = x.id
        cross join lateral (select l.cancel_reasons[array_position(l.canceled, f.id)] as cancel) c
        cross join lateral (select * from windlass.job where job.id = f.id offset 0) j),
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
    w as (select a.lease, count(*) as jobs from a group by a.lease),
    t as (select a.tenant_id, (array[6, null, 8, 7])[a.op + 1]::smallint as status, count(*) as jobs
          from a where a.op in (0, 2, 3) group by 1, 2)
    select (select array_agg(a.n order by a.n) from a),
           (select array_agg((array[6, 2, 8, 7, 1, 0, 3, 0])[a.op + 1]::smallint order by a.n) from a),
           (select array_agg(a.id) from a),
           (select array_agg(w.lease) from w join l on l.lease_id = w.lease where w.jobs = cardinality(l.ids)),
           (select array_agg(w.lease) from w join l on l.lease_id = w.lease where w.jobs < cardinality(l.ids)),
           (select array_agg(t.tenant_id) from t), (select array_agg(t.status) from t),
           (select array_agg(t.jobs) from t)
    into v_n, v_status, v_ids, v_whole, v_part, v_tenants, v_statuses, v_counts;
    if v_n is null then
        return query select '{}'::int[], '{}'::smallint[];
        return;
    end if;
    if p_op && array[5, 7]::smallint[] then
        -- The leases are locked and still whole: what they say of the jobs is current.
        for v_ready in
            select f.op, array_agg(f.id order by f.id) as ids,
                   array_agg(case when f.op = 7 then f.text when x.recoveries > 0 then 'suspect:' || j.queue
                                  else j.queue end order by f.id) as queues,
                   array_agg(windlass.rank_of(j.priority) order by f.id) as ranks,
                   array_agg(j.tenant_id order by f.id) as tenants, array_agg(x.failed order by f.id) as failed,
                   array_agg(x.recoveries order by f.id) as recoveries, array_agg(true) as resumed
            from windlass.lease l cross join unnest(l.ids, l.failed, l.recoveries) x(id, failed, recoveries)
            join unnest(p_lease, p_id, p_op, p_text) f(lease, id, op, text) on f.lease = l.lease_id and f.id = x.id
            cross join lateral (select * from windlass.job where job.id = f.id offset 0) j
            where l.lease_id = any (p_leases) and l.node_id = p_node and f.op in (5, 7)
              and array_position(l.canceled, f.id) is null
            group by f.op
        loop
            perform windlass.make_ready(v_ready.ids, v_ready.queues, v_ready.ranks, v_ready.tenants, v_ready.failed,
                v_ready.recoveries, v_ready.resumed, v_ready.op = 5);
        end loop;
    end if;
    perform windlass.shrink_leases(v_whole, v_part, v_ids);
    if v_tenants is not null then
        insert into windlass.counter_delta (tenants, statuses, counts) values (v_tenants, v_statuses, v_counts);
    end if;
    if p_op && array[6]::smallint[] then
        perform windlass.open_own_gates(v_ids);
    end if;
    if p_follow is not null then
        select json_agg(f.value -> 'job') into v_follow
        from json_array_elements(p_follow) f
        join unnest(v_n, v_status) a(n, status) on a.n = (f.value ->> 'n')::int
        where a.status = (array[6, 2, 8, 7, 1, 0, 3, 0])[p_op[a.n] + 1];
        if v_follow is not null then
            perform windlass.submit_jobs(v_follow);
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
        where l.lease_id = any (p_leases) and l.node_id = p_node order by l.lease_id for update),
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
    where l.lease_id = p_lease and l.node_id = p_node and p_id = any (l.ids) for update;
    if not found then
        return false;
    end if;
    insert into windlass.checkpoint as c (id, data) values (p_id, p_data)
    on conflict (id) do update set data = excluded.data;
    return true;
end $$;
