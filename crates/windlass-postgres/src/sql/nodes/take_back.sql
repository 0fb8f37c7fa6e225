-- What was noted of a job when its node was lost the last time, if its last error is that.
create or replace function windlass.last_loss(p_id bigint) returns json language sql stable as
$$ select d.details from (
       select v.error from windlass.event v where v.id = p_id and v.error is not null
       order by v.id, v.seq desc limit 1) e
   -- An error that has a code can be taken apart.
   cross join lateral (select case when windlass.json_text(e.error, 'code') = 'node_unavailable'
                                   then e.error -> 'details' end as details) d
   where d.details ->> 'ran_ms' ~ '^[0-9]{1,15}$' and d.details ->> 'suspects' ~ '^[0-9]{1,9}$' $$;

-- Gives back what nodes hold: for a lost node (last heard of at p_beats, which the lease p_lease is counted from) with one
-- more recovery, each job by itself among the suspects; else as it was, in front. What is noted of the loss is as
-- `note_losses` of core says. Jobs whose cancel was requested end as canceled. Answers the jobs that are ready again.
create or replace function windlass.take_back(p_nodes bigint[], p_lost boolean, p_beats timestamptz[] default null,
                                   p_lease interval default null) returns bigint[] language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    r record;
    v_leases bigint[];
    v_parts smallint[];
begin
    -- Whoever holds one of them (a transaction of the node whose connection has fallen silent) may hold it for long: it is
    -- left out, and found again as the lease of a node that is not there.
    select array_agg(k.lease_id), array_agg(k.part) into v_leases, v_parts
    from (select l.lease_id, l.part from windlass.lease l where l.node_id = any (p_nodes)
          order by l.lease_id, l.part for update skip locked) k;
    with l as materialized (
        delete from windlass.lease l using unnest(v_leases, v_parts) k(lease_id, part)
        where l.lease_id = k.lease_id and l.part = k.part returning l.*),
    a as materialized (
        select x.id, l.failed, l.recoveries, l.node_id,
               greatest(0, extract(epoch from p_beats[array_position(p_nodes, l.node_id)] - l.claimed_at) * 1000)::bigint
                   as ran,
               case when p_lost and l.recoveries > 0 then windlass.last_loss(x.id) end as before,
               l.claimed_at, l.lease_id, l.part, x.n, j.tenant_id, j.queue, j.spec,
               windlass.rank_of(j.priority) as rank, l.cancel_reasons[array_position(l.canceled, x.id)] as cancel,
               windlass.gone_at(v_now, windlass.keep_of(j.spec)) as purge_at
        from l cross join unnest(l.ids) with ordinality x(id, n)
        cross join lateral (select * from windlass.job where job.id = x.id offset 0) j),
    -- Who has not outlived its own last loss may be the cause.
    c as materialized (
        select a.id, a.ran, a.before, a.node_id, a.recoveries, a.before is not null
                   and a.ran > (a.before ->> 'ran_ms')::bigint + extract(epoch from
                       least(p_lease / 2, case when a.recoveries > 1 then interval '2 seconds' else p_lease end)) * 1000
                   as outlived
        from a where p_lost),
    n as materialized (
        select c.id, case when c.outlived then (c.before ->> 'ran_ms')::bigint else c.ran end as ran_ms,
               case when c.outlived then (c.before ->> 'suspects')::bigint
                    else count(*) filter (where not c.outlived)
                         over (partition by c.node_id order by c.recoveries desc
                               range between unbounded preceding and current row) end as suspects,
               c.outlived
        from c),
    o as (
        insert into windlass.outcome (id, finished_at, started_at, purge_at, node_id, status, attempt, failed,
                                      recoveries, reason)
        select a.id, v_now, a.claimed_at, a.purge_at, a.node_id, 7, a.failed + a.recoveries + 1, a.failed, a.recoveries, a.cancel
        from a where a.cancel is not null
        on conflict do nothing),
    d as (
        insert into windlass.counter_delta (tenants, statuses, counts, untils)
        select array_agg(a.tenant_id), array_agg(7::smallint), array_agg(1::bigint), array_agg(a.purge_at)
        from a where a.cancel is not null having count(*) > 0),
    e as (
        insert into windlass.event (id, at, started_at, node_id, status, attempt, failed, recoveries, error)
        select a.id, v_now, a.claimed_at, a.node_id, 0, a.failed + a.recoveries + 1, a.failed,
               least(a.recoveries + 1, 65535),
               json_build_object('code', 'node_unavailable', 'message', 'the node that ran the job was lost',
                   'details', json_build_object('ran_ms', n.ran_ms, 'suspects', n.suspects, 'outlived', n.outlived),
                   'kind', 'retryable')
        from a join n on n.id = a.id where a.cancel is null and p_lost),
    b as (select * from a where a.cancel is null order by a.lease_id, a.part, a.n)
    select array_agg(b.id) as ids,
           array_agg(windlass.home_queue(b.queue, case when p_lost then b.recoveries + 1 else b.recoveries end)) as queues,
           array_agg(b.rank) as ranks, array_agg(b.tenant_id) as tenants, array_agg(b.failed) as failed,
           array_agg(case when p_lost then least(b.recoveries + 1, 65535) else b.recoveries end) as recoveries,
           array_agg(true) as resumed, (select array_agg(a.id) from a where a.cancel is not null) as canceled
    into r from b;
    if r.ids is not null then
        perform windlass.make_ready(r.ids, r.queues, r.ranks, r.tenants, r.failed, r.recoveries, r.resumed, true);
        perform windlass.note_feed(r.ids, 0, array(select f + n from unnest(r.failed, r.recoveries) u(f, n)));
    end if;
    if r.canceled is not null then
        perform windlass.count_member(j.id, j.spec, 7::smallint, 1) from windlass.job j where j.id = any (r.canceled);
        -- Their outcomes tell the attempts.
        perform windlass.note_feed(r.canceled, 7, null);
        perform windlass.pass_on(r.canceled);
    end if;
    return coalesce(r.ids, '{}');
end $$;
