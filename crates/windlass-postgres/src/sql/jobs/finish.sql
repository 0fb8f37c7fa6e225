-- Attempts that ended in any way. p_op: 0 succeed, 1 retry, 2 dead letter, 3 cancel, 4 snooze, 5 release, 6 park,
-- 7 route. p_text: the reason, the gate or the queue; of a success the action of its audit entry, if it has one. p_fresh:
-- true for a job no attempt at which has begun, ever. p_follow: [{"n": place, "job": job}].
create or replace function windlass.finish(
    p_node bigint, p_leases bigint[], p_lease bigint[], p_id bigint[], p_attempt integer[], p_ran bigint[],
    p_op smallint[], p_keep bigint[], p_output json[], p_failed integer[], p_delay bigint[], p_text text[],
    p_error json[], p_fresh boolean[], p_follow json
) returns table (o_n int[], o_status smallint[]) language plpgsql
set enable_seqscan = off set jit = off set lock_timeout = '2s' as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    h record;
    v_n int[]; v_status smallint[];
    v_tenants uuid[]; v_statuses smallint[]; v_counts bigint[]; v_untils timestamptz[];
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
               case when f.cancel is not null and f.op = 2 then windlass.gone_at(v_now, windlass.keep_of(j.spec))
                    when f.cancel is not null or f.op in (0, 3) then
                        windlass.gone_at(v_now, coalesce(f.keep, windlass.keep_of(j.spec)))
                    when f.op = 2 and f.keep is not null then windlass.gone_at(v_now, f.keep) end as purge_at,
               f.output, f.failed_now, f.delay, f.text, f.error, f.failed, f.recoveries, f.fresh is not true as resumed,
               j.tenant_id, j.queue, j.spec, j.created_at, windlass.rank_of(j.priority) as rank,
               windlass.home_queue(j.queue, f.recoveries) as own_queue
        from unnest(p_id, p_attempt, p_ran, p_op, p_keep, p_output, p_failed, p_delay, p_text, p_error, p_fresh,
                    h.o_held, h.o_failed, h.o_recoveries, h.o_cancel) with ordinality
             f(id, attempt, ran, op, keep, output, failed_now, delay, text, error, fresh, held, failed, recoveries,
               cancel, n)
        cross join lateral (select * from windlass.job where job.id = f.id offset 0) j
        where f.held),
    o as (
        insert into windlass.outcome (id, finished_at, started_at, purge_at, node_id, status, attempt, failed,
                                      recoveries, reason, output, error)
        select a.id, v_now, a.started_at, a.purge_at,
               p_node, (array[6, null, 8, 7])[a.op + 1], a.attempt,
               case when a.op = 2 then coalesce(a.failed_now, a.failed) else a.failed end, a.recoveries,
               case when a.op in (2, 3) then coalesce(a.cancel, a.text) end,
               case when a.op = 0 then a.output end, a.error
        from a where a.op in (0, 2, 3)
        -- A row that something else has written let a job run that has ended: this attempt was at nothing.
        on conflict do nothing returning id),
    s as (
        insert into windlass.scheduled (run_at, id, tenant_id, kind, rank, failed, recoveries, resumed, queue)
        select v_now + a.delay * interval '1 microsecond', a.id, a.tenant_id, case when a.op = 1 then 2 else 1 end,
               a.rank, coalesce(a.failed_now, a.failed), a.recoveries, a.resumed, a.own_queue
        from a where a.op in (1, 4)),
    g as (
        insert into windlass.gated (id, tenant_id, created_at, run_at, rank, failed, recoveries, resumed, queue, gate)
        select a.id, a.tenant_id, a.created_at, null, a.rank, a.failed, a.recoveries, a.resumed, a.own_queue, a.text
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
        select v_now, a.tenant_id, 'windlass',
               case when a.op = 0 then a.text when a.text = 'max_retries' then 'JOB_EXHAUSTED_RETRIES'
                    else 'JOB_FAILED' end,
               a.id::text, windlass.json_text(a.error, 'code')
        from a where a.op = 2 or a.op = 0 and a.text is not null),
    -- No attempt at it has begun, so it may still expire. Its row is gone if its time passed while it was held; one that
    -- `expire` has in its hands counts as gone, and one too many does no harm.
    x as (
        insert into windlass.expiry (at, id)
        select y.at, y.id
        from (select windlass.expiry_of(a.spec) as at, a.id from a
              where a.op in (4, 5, 6, 7) and not a.resumed and a.spec is not null) y
        where y.at is not null and not exists (
            select 1 from windlass.expiry e where e.at = y.at and e.id = y.id for update skip locked)),
    t as (select a.tenant_id, (array[6, null, 8, 7])[a.op + 1]::smallint as status, a.purge_at, count(*) as jobs
          from a join o on o.id = a.id group by 1, 2, 3),
    k as (select a.n, (array[6, 2, 8, 7, 1, 0, 3, 0])[a.op + 1]::smallint as status from a
          where a.op not in (0, 2, 3) or a.id in (select o.id from o))
    select (select array_agg(k.n order by k.n) from k), (select array_agg(k.status order by k.n) from k),
           (select array_agg(t.tenant_id) from t), (select array_agg(t.status) from t),
           (select array_agg(t.jobs) from t), (select array_agg(t.purge_at) from t)
    into v_n, v_status, v_tenants, v_statuses, v_counts, v_untils;
    if p_op && array[5, 7]::smallint[] then
        for v_ready in
            select f.op, array_agg(f.id order by f.id) as ids,
                   array_agg(case when f.op = 7 then f.text else windlass.home_queue(j.queue, f.recoveries) end
                             order by f.id) as queues,
                   array_agg(windlass.rank_of(j.priority) order by f.id) as ranks,
                   array_agg(j.tenant_id order by f.id) as tenants, array_agg(f.failed order by f.id) as failed,
                   array_agg(f.recoveries order by f.id) as recoveries,
                   array_agg(f.fresh is not true order by f.id) as resumed
            from unnest(p_id, p_op, p_text, p_fresh, h.o_held, h.o_failed, h.o_recoveries, h.o_cancel)
                 f(id, op, text, fresh, held, failed, recoveries, cancel)
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
        insert into windlass.counter_delta (tenants, statuses, counts, untils)
        values (v_tenants, v_statuses, v_counts, v_untils);
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
            perform windlass.store_jobs_within(v_follow, false, false);
        end if;
    end if;
    return query select v_n, v_status;
end $$;
