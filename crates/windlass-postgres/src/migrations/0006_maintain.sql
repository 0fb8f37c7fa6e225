-- Nodes, and the steps of maintenance. Each is bounded, repeatable, and safe on several nodes at once.

create function windlass.register(p_info json, p_quarantine interval)
returns table (o_node bigint, o_slot smallint, o_now timestamptz) language plpgsql as $$
#variable_conflict use_column
declare
    -- Never the same again, even if a failover or a restore has set the sequence back while nodes live on that it does
    -- not know of: two that took themselves for one would keep each other's jobs alive.
    v_node bigint := (nextval('windlass.node_seq') << 20) | floor(random() * 1048576)::bigint;
    v_slot smallint;
    v_free_at timestamptz;
begin
    select s.slot, s.free_at into v_slot, v_free_at from windlass.slot s
    -- Any of them, for the same reason: the next in order is the one that a forgotten node has.
    where s.node_id is null and s.free_at <= clock_timestamp() order by random() limit 1 for update skip locked;
    if not found then
        return;
    end if;
    update windlass.slot s set node_id = v_node where s.slot = v_slot;
    insert into windlass.node (node_id, slot, info) values (v_node, v_slot, p_info);
    return query select v_node, v_slot, clock_timestamp();
end $$;

-- Gives back what nodes hold: for a lost node with one more recovery, each job by itself among the suspects; else as it
-- was, in front. Jobs whose cancel was requested end as canceled. Answers the jobs that are ready again.
create function windlass.take_back(p_nodes bigint[], p_lost boolean) returns bigint[] language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    r record;
    v_canceled bigint[];
begin
    perform 1 from windlass.lease l where l.node_id = any (p_nodes) order by l.lease_id, l.part for update;
    with l as materialized (delete from windlass.lease l where l.node_id = any (p_nodes) returning l.*),
    a as materialized (
        select x.id, l.failed, l.recoveries, l.node_id, l.claimed_at, l.lease_id, l.part, x.n, j.tenant_id, j.queue, j.spec,
               windlass.rank_of(j.priority) as rank, l.cancel_reasons[array_position(l.canceled, x.id)] as cancel
        from l cross join unnest(l.ids) with ordinality x(id, n)
        cross join lateral (select * from windlass.job where job.id = x.id offset 0) j),
    o as (
        insert into windlass.outcome (id, finished_at, started_at, purge_at, node_id, status, attempt, failed,
                                      recoveries, reason)
        select a.id, v_now, a.claimed_at, v_now + windlass.keep_of(a.spec), a.node_id, 7,
               a.failed + a.recoveries + 1, a.failed, a.recoveries, a.cancel
        from a where a.cancel is not null),
    d as (
        insert into windlass.counter_delta (tenants, statuses, counts)
        select array_agg(a.tenant_id), array_agg(7::smallint), array_agg(1::bigint) from a where a.cancel is not null
        having count(*) > 0),
    e as (
        insert into windlass.event (id, at, started_at, node_id, status, attempt, failed, recoveries, error)
        select a.id, v_now, a.claimed_at, a.node_id, 0, a.failed + a.recoveries + 1, a.failed, a.recoveries + 1,
               '{"code":"node_unavailable","message":"the node that ran the job was lost","kind":"retryable"}'
        from a where a.cancel is null and p_lost),
    b as (select * from a where a.cancel is null order by a.lease_id, a.part, a.n)
    select array_agg(b.id) as ids,
           array_agg(case when p_lost or b.recoveries > 0 then 'suspect:' || b.queue else b.queue end) as queues,
           array_agg(b.rank) as ranks, array_agg(b.tenant_id) as tenants, array_agg(b.failed) as failed,
           array_agg(case when p_lost then b.recoveries + 1 else b.recoveries end) as recoveries,
           array_agg(true) as resumed, (select array_agg(a.id) from a where a.cancel is not null) as canceled
    into r from b;
    if r.ids is not null then
        perform windlass.make_ready(r.ids, r.queues, r.ranks, r.tenants, r.failed, r.recoveries, r.resumed, true);
        perform windlass.note_feed(r.ids, 0, array(select f + n from unnest(r.failed, r.recoveries) u(f, n)));
    end if;
    if r.canceled is not null then
        -- Their outcomes tell the attempts.
        perform windlass.note_feed(r.canceled, 7, null);
        perform windlass.pass_on(r.canceled);
    end if;
    return coalesce(r.ids, '{}');
end $$;

create function windlass.deregister(p_node bigint, p_quarantine interval) returns void language plpgsql as $$
#variable_conflict use_column
begin
    delete from windlass.node d where d.node_id = p_node;
    perform windlass.take_back(array[p_node], false);
    update windlass.slot s set node_id = null, free_at = clock_timestamp() + p_quarantine where s.node_id = p_node;
end $$;

create function windlass.recover(p_lease interval, p_quarantine interval)
returns table (o_nodes bigint[], o_jobs bigint[]) language plpgsql as $$
#variable_conflict use_column
declare
    v_nodes bigint[];
    v_orphans bigint[];
    v_jobs bigint[];
begin
    -- A clock that was set back leaves heartbeats in the future, and a node that died before would live until then. Its
    -- time counts from now on; one that is alive renews itself soon.
    update windlass.node n set heartbeat_at = clock_timestamp()
    where n.heartbeat_at > clock_timestamp() + interval '1 second';
    with d as materialized (
        select n.node_id from windlass.node n where n.heartbeat_at < clock_timestamp() - p_lease
        order by n.node_id for update skip locked),
    x as (delete from windlass.node n using d where n.node_id = d.node_id
          returning n.node_id, n.heartbeat_at),
    s as (update windlass.slot s set node_id = null, free_at = x.heartbeat_at + p_quarantine
          from x where s.node_id = x.node_id)
    select array_agg(x.node_id) into v_nodes from x;
    -- A claim that was under way while its node was declared dead leaves a lease that nobody renews.
    select array_agg(distinct l.node_id) into v_orphans from windlass.lease l
    where not exists (select 1 from windlass.node n where n.node_id = l.node_id);
    if v_orphans is null then
        return query select coalesce(v_nodes, '{}'), '{}'::bigint[];
        return;
    end if;
    v_jobs := windlass.take_back(v_orphans, true);
    return query select coalesce(v_nodes, '{}'), v_jobs;
end $$;

create function windlass.promote(p_from timestamptz, p_limit int)
returns table (o_jobs int, o_next_us bigint, o_last timestamptz) language plpgsql
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_next timestamptz;
    r record;
begin
    with d as (
        delete from windlass.scheduled s where s.ctid = any (array(
            select t.ctid from windlass.scheduled t where t.run_at <= v_now and t.run_at >= p_from
            order by t.run_at, t.id limit p_limit for update skip locked))
        returning s.*),
    o as (select * from d order by d.run_at, d.id)
    select array_agg(o.id) as ids, array_agg(o.queue) as queues, array_agg(o.rank) as ranks,
           array_agg(o.tenant_id) as tenants, array_agg(o.failed) as failed, array_agg(o.recoveries) as recoveries,
           array_agg(o.resumed) as resumed, max(o.run_at) as last
    into r from o;
    if r.ids is not null then
        perform windlass.make_ready(r.ids, r.queues, r.ranks, r.tenants, r.failed, r.recoveries, r.resumed, false, true);
    end if;
    select s.run_at into v_next from windlass.scheduled s where s.run_at >= p_from order by s.run_at limit 1;
    return query select coalesce(cardinality(r.ids), 0),
        case when v_next is not null then
            (extract(epoch from greatest(v_next - clock_timestamp(), interval '0')) * 1000000)::bigint end, r.last;
end $$;

create function windlass.expire(p_limit int) returns int language plpgsql as $$
#variable_conflict use_column
declare
    x record;
    j record;
    w record;
    v_expired int := 0;
    v_ids bigint[] := '{}';
begin
    for x in
        delete from windlass.expiry e where e.ctid = any (array(
            select f.ctid from windlass.expiry f where f.at <= clock_timestamp()
            order by f.at limit p_limit for update skip locked))
        returning e.id
    loop
        select d.tenant_id, d.spec into j from windlass.job d where d.id = x.id;
        continue when not found;
        -- One that runs now has started in time; one that comes back from a lease is checked before it starts.
        w := windlass.take_waiting(x.id, j.tenant_id, true);
        continue when w.o_failed is null;
        perform windlass.end_waiting(x.id, j.tenant_id, j.spec, w.o_failed, w.o_recoveries, 'expired', null);
        v_expired := v_expired + 1;
        v_ids := v_ids || x.id;
    end loop;
    if v_expired > 0 then
        perform windlass.pass_on(v_ids);
    end if;
    return v_expired;
end $$;

-- The holders of ordering keys from p_from on whose job has ended, at most so many rows looked at.
create function windlass.ended_holders(p_tenant uuid, p_key text, p_scan int)
returns table (o_tenants uuid[], o_keys text[], o_last_tenant uuid, o_last_key text, o_scanned int) language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
begin
    return query
    with k as materialized (
        select h.tenant_id, h.ordering_key, h.id from windlass.key_holder h
        where (h.tenant_id, h.ordering_key) > (p_tenant, p_key collate "C")
        order by h.tenant_id, h.ordering_key limit p_scan),
    e as (select k.* from k
          where exists (select 1 from windlass.outcome o where o.id = k.id)
             or not exists (select 1 from windlass.job j where j.id = k.id))
    select (select array_agg(e.tenant_id) from e), (select array_agg(e.ordering_key::text) from e),
           (select k.tenant_id from k order by k.tenant_id desc, k.ordering_key desc limit 1),
           (select k.ordering_key::text from k order by k.tenant_id desc, k.ordering_key desc limit 1),
           (select count(*)::int from k);
end $$;

-- Makes jobs ready that were parked by a pause that is over.
create function windlass.open_pauses(p_limit int) returns int language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_gate text := 'pause:';
    v_opened int := 0;
    r record;
begin
    loop
        select g.gate into v_gate from windlass.gated g
        where g.gate > v_gate collate "C" and g.gate < 'pause;' order by g.gate limit 1;
        exit when not found or v_opened >= p_limit;
        continue when exists (select 1 from windlass.pause p where 'pause:' || p.target = v_gate);
        with d as (
            delete from windlass.gated g where g.ctid = any (array(
                select h.ctid from windlass.gated h where h.gate = v_gate collate "C"
                order by h.gate, h.tenant_id, h.created_at, h.id limit p_limit - v_opened for update skip locked))
            returning g.*),
        o as (select * from d order by d.created_at, d.id)
        select array_agg(o.id) as ids, array_agg(o.queue) as queues, array_agg(o.rank) as ranks,
               array_agg(o.tenant_id) as tenants, array_agg(o.failed) as failed,
               array_agg(o.recoveries) as recoveries, array_agg(o.resumed) as resumed
        into r from o;
        if r.ids is not null then
            v_opened := v_opened + windlass.make_ready(r.ids, r.queues, r.ranks, r.tenants, r.failed, r.recoveries,
                r.resumed, false, true);
        end if;
    end loop;
    return v_opened;
end $$;

-- Removes ended jobs whose time is over among the next p_scan outcomes after p_from, at most p_limit.
create function windlass.clean(p_from bigint, p_scan int, p_limit int)
returns table (o_removed int, o_last bigint, o_scanned int) language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_ids bigint[]; v_last bigint; v_scanned int;
begin
    perform set_config('synchronous_commit', 'off', true);
    select array_agg(s.id order by s.id) filter (where s.purge_at <= clock_timestamp()), max(s.id), count(*)
    into v_ids, v_last, v_scanned
    from (select o.id, o.purge_at from windlass.outcome o where o.id > p_from order by o.id limit p_scan) s;
    if cardinality(v_ids) > p_limit then
        v_ids := v_ids[1:p_limit];
        v_last := v_ids[p_limit];
    end if;
    if v_ids is not null then
        -- Another cleaner may be at the same rows: only what is locked here is removed and counted here.
        v_ids := array(select o.id from windlass.outcome o where o.id = any (v_ids) and o.purge_at <= clock_timestamp()
                       for update skip locked);
        perform windlass.remove_jobs(v_ids);
    end if;
    return query select coalesce(cardinality(v_ids), 0), v_last, v_scanned;
end $$;

-- Folds counter deltas. Sorted, so that two folders cannot wait for each other.
create function windlass.fold_counters(p_limit int) returns int language plpgsql as $$
#variable_conflict use_column
declare
    v_rows int;
begin
    with d as (
        delete from windlass.counter_delta c where c.ctid = any (array(
            select e.ctid from windlass.counter_delta e limit p_limit for update skip locked))
        returning c.*),
    s as (
        select u.tenant_id, u.status, sum(u.n) as n
        from d cross join unnest(d.tenants, d.statuses, d.counts) u(tenant_id, status, n)
        group by 1, 2 order by 1, 2),
    f as (
        insert into windlass.counter as c (tenant_id, status, n) select * from s
        on conflict (tenant_id, status) do update set n = c.n + excluded.n)
    select count(*) into v_rows from d;
    return v_rows;
end $$;

-- Drops one old week. Jobs that are not over (unfinished, dead letters, kept longer) move to the default partition; if
-- there are more than p_survivors of them, the week stays and its rows are removed one by one. Short locks only.
create function windlass.drop_week(p_day date, p_survivors int) returns boolean language plpgsql
set lock_timeout = '200ms' set jit = off as $$
#variable_conflict use_column
declare
    v_job text := 'job_p' || to_char(p_day, 'YYYYMMDD');
    v_outcome text := 'outcome_p' || to_char(p_day, 'YYYYMMDD');
    v_survivors bigint;
    v_ids bigint[];
begin
    if to_regclass('windlass.' || v_job) is null or to_regclass('windlass.' || v_outcome) is null then
        return false;
    end if;
    execute format('select count(*) from (select 1 from windlass.%I j left join windlass.%I o on o.id = j.id
        where o.id is null or o.purge_at is null or o.purge_at > clock_timestamp() limit $1) s', v_job, v_outcome)
        into v_survivors using p_survivors + 1;
    if v_survivors > p_survivors then
        return false;
    end if;
    execute format('alter table windlass.outcome detach partition windlass.%I', v_outcome);
    execute format('alter table windlass.job detach partition windlass.%I', v_job);
    perform set_config('windlass.packed', 'on', true);
    execute format('with o as (insert into windlass.outcome select * from windlass.%2$I o
                               where o.purge_at is null or o.purge_at > clock_timestamp() returning id)
        , j as (insert into windlass.job select j.* from windlass.%1$I j left join windlass.%2$I o on o.id = j.id
                where o.id is null or o.purge_at is null or o.purge_at > clock_timestamp() returning id)
        select array_agg(j.id) from j', v_job, v_outcome) into v_ids;
    perform set_config('windlass.packed', 'off', true);
    delete from windlass.event e where e.id >= windlass.week_bound(p_day) and e.id < windlass.week_bound(p_day + 7)
        and e.id <> all (coalesce(v_ids, '{}'));
    delete from windlass.progress e where e.id >= windlass.week_bound(p_day) and e.id < windlass.week_bound(p_day + 7)
        and e.id <> all (coalesce(v_ids, '{}'));
    delete from windlass.job_log e where e.id >= windlass.week_bound(p_day) and e.id < windlass.week_bound(p_day + 7)
        and e.id <> all (coalesce(v_ids, '{}'));
    delete from windlass.checkpoint e where e.id >= windlass.week_bound(p_day)
        and e.id < windlass.week_bound(p_day + 7) and e.id <> all (coalesce(v_ids, '{}'));
    delete from windlass.job_key e where e.id >= windlass.week_bound(p_day) and e.id < windlass.week_bound(p_day + 7)
        and e.id <> all (coalesce(v_ids, '{}')) and (e.until is null or e.until <= clock_timestamp());
    execute format('drop table windlass.%I', v_outcome);
    execute format('drop table windlass.%I', v_job);
    return true;
end $$;

-- The weeks that ended before p_before, oldest first.
create function windlass.old_weeks(p_before timestamptz) returns setof date language sql stable as
$$ select to_date(substr(c.relname, 6), 'YYYYMMDD') as day
   from pg_inherits i join pg_class c on c.oid = i.inhrelid
   where i.inhparent = 'windlass.job'::regclass and c.relname ~ '^job_p[0-9]{8}$'
     and (to_date(substr(c.relname, 6), 'YYYYMMDD') + 7)::timestamp at time zone 'UTC' < p_before
   order by 1 $$;
