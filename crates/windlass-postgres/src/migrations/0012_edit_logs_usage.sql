-- What operators change about waiting jobs, what handlers say while they run, and what jobs cost.

-- ---- edits

-- Changes a waiting job (BEY-5); null leaves a thing as it is. The start is now (p_now), at p_at or p_delay microseconds
-- from now. The place of the job is locked first, as for a cancel: a claim has the job before, or all of the edit. This is
-- the one exception to a row of `job` that never changes. Answers with the status the job waits in from now on, or 5 to 8
-- where it runs or has ended, -1 not found, -2 moving too fast, -6 it cannot start now because of o_gate; and the queue
-- it waits in.
create function windlass.edit(
    p_tenant uuid, p_id bigint, p_by text, p_what text, p_input json, p_priority smallint, p_now boolean,
    p_at timestamptz, p_delay bigint, out o_code int, out o_gate text, out o_queue text
) language plpgsql set jit = off as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_starts boolean := p_now or p_at is not null or p_delay is not null;
    v_due timestamptz := coalesce(p_at, v_now + p_delay * interval '1 microsecond');
    v_tenant uuid;
    v_status smallint;
    v_rank smallint;
    v_run_at timestamptz;
    j record;
    o record;
    w record;
begin
    if v_due <= v_now then
        v_due := null;
    end if;
    select d.tenant_id into v_tenant from windlass.job d
    where d.id = p_id and (p_tenant is null or d.tenant_id = p_tenant);
    if not found then
        o_code := -1;
        return;
    end if;
    -- The job may move while we look; each statement looks anew, and it can only move so often.
    for i in 1..20 loop
        select d.status, d.purge_at into o from windlass.outcome d where d.id = p_id;
        if found then
            o_code := case when o.purge_at <= clock_timestamp() then -1 else o.status end;
            return;
        end if;
        select s.kind, s.queue, s.failed, s.recoveries, s.resumed, s.rank, null::text as gate, null::tid as chunk,
               null::int as jobs into w
        from windlass.scheduled s where s.id = p_id for update;
        exit when found;
        select 3::smallint as kind, g.queue, g.failed, g.recoveries, g.resumed, g.rank, g.gate::text as gate,
               null::tid as chunk, null::int as jobs into w
        from windlass.gated g where g.id = p_id for update;
        exit when found;
        -- No index leads from a job to its chunk: chunks live shortly, and an index would cost every job.
        select 0::smallint as kind, r.queue, r.failed, r.recoveries, r.resumed, r.rank, null::text as gate,
               r.ctid as chunk, cardinality(r.ids) as jobs into w
        from windlass.ready r where r.tenant_id = v_tenant and r.ids @> array[p_id] limit 1 for update;
        exit when found;
        if exists (select 1 from windlass.lease l where l.ids @> array[p_id]) then
            o_code := 5;
            return;
        end if;
    end loop;
    -- A select that finds nothing leaves nulls.
    v_status := w.kind;
    if v_status is null then
        o_code := -2;
        return;
    elsif v_status = 3 and p_now then
        o_code := -6;
        o_gate := w.gate;
        return;
    end if;
    -- Read under the lock: another edit may have been here.
    select d.priority, d.created_at, d.run_at, octet_length(d.payload::text) as bytes into j
    from windlass.job d where d.id = p_id;
    v_rank := windlass.rank_of(coalesce(p_priority, j.priority));
    v_run_at := j.run_at;
    o_code := v_status;
    o_queue := w.queue;
    if v_status = 0 and (v_due is not null or v_rank <> w.rank) then
        if w.jobs = 1 then
            delete from windlass.ready r where r.ctid = w.chunk;
        else
            update windlass.ready r set ids = array_remove(r.ids, p_id), first = (array_remove(r.ids, p_id))[1]
            where r.ctid = w.chunk;
        end if;
        if not found then
            raise exception 'windlass: the chunk of job % moved while it was locked', p_id using errcode = '40001';
        end if;
    elsif v_status in (1, 2) and v_starts and v_due is null then
        delete from windlass.scheduled s where s.id = p_id;
        o_code := 0;
        v_run_at := v_now;
    elsif v_status in (1, 2) then
        update windlass.scheduled s set rank = v_rank, run_at = coalesce(v_due, s.run_at) where s.id = p_id;
        v_run_at := coalesce(v_due, v_run_at);
    elsif v_status = 3 and v_due is not null and w.gate like 'pause:%' then
        delete from windlass.gated g where g.id = p_id;
    elsif v_status = 3 then
        update windlass.gated g set rank = v_rank, run_at = case when v_starts then v_due else g.run_at end
        where g.id = p_id;
        if v_starts then
            v_run_at := coalesce(v_due, v_now);
        end if;
    end if;
    if v_due is not null and (v_status = 0 or v_status = 3 and w.gate like 'pause:%') then
        insert into windlass.scheduled (run_at, id, tenant_id, kind, rank, failed, recoveries, resumed, queue)
        values (v_due, p_id, v_tenant, 1, v_rank, w.failed, w.recoveries, w.resumed, w.queue);
        o_code := 1;
        v_run_at := v_due;
    elsif o_code = 0 and (v_status <> 0 or v_rank <> w.rank) then
        perform windlass.make_ready(array[p_id], array[w.queue], array[v_rank], array[v_tenant], array[w.failed],
            array[w.recoveries], array[w.resumed], false);
    end if;
    if p_input is not null and octet_length(p_input::text) > j.bytes
       and exists (select 1 from windlass.quota_of(v_tenant) q where q.bytes is not null) then
        insert into windlass.tenant_use_delta (tenant_id, jobs, bytes)
        values (v_tenant, 0, octet_length(p_input::text) - j.bytes);
    end if;
    if j.run_at is null and v_run_at is not null
       and not exists (select 1 from windlass.event e
                       where e.id = p_id and e.at = j.created_at and e.attempt = 0 and e.note is null) then
        -- The row no longer tells that it was due at once when it was submitted.
        insert into windlass.event (id, at, status, attempt, failed, recoveries) values (p_id, j.created_at, 0, 0, 0, 0);
    end if;
    update windlass.job d set payload = coalesce(p_input, d.payload), priority = coalesce(p_priority, d.priority),
           run_at = v_run_at
    where d.id = p_id;
    insert into windlass.event (id, at, status, attempt, failed, recoveries, note)
    values (p_id, v_now, o_code, w.failed + w.recoveries, w.failed, w.recoveries, 'edited by ' || p_by || ': ' || p_what);
    insert into windlass.audit (at, tenant_id, actor, action, target, detail)
    values (v_now, v_tenant, p_by, 'JOB_EDITED', p_id::text, p_what);
end $$;

-- ---- log lines

-- What jobs said while they ran (BEY-7), the newest lines only. `number` counts the lines of a lease, so that a repeated
-- write adds nothing; `sequence` counts those of the job.
create table windlass.job_log (
    id bigint not null,
    sequence bigint not null,
    lease_id bigint not null,
    number bigint not null,
    at timestamptz not null,
    attempt integer not null,
    level smallint not null,
    message text not null,
    primary key (id, sequence)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Keeps lines of jobs that are still held, at most p_keep of a job. p_of: which report a line belongs to, counted from 1.
-- Answers the places of the reports whose fence holds.
create function windlass.add_logs(
    p_node bigint, p_leases bigint[], p_lease bigint[], p_id bigint[], p_attempt integer[], p_of int[], p_number bigint[],
    p_at timestamptz[], p_level smallint[], p_message text[], p_keep int
) returns int[] language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_n int[]; v_ids bigint[];
begin
    perform set_config('synchronous_commit', 'off', true);
    -- In a statement of its own: what is kept already is looked at with the lease locked.
    with l as materialized (
        select l.lease_id, l.ids from windlass.lease l
        where l.lease_id = any (p_leases) and l.node_id + 0 = p_node order by l.lease_id, l.part for update)
    select array_agg(f.n::int), array_agg(f.id) into v_n, v_ids from l
    join unnest(p_lease, p_id) with ordinality f(lease, id, n) on f.lease = l.lease_id and f.id = any (l.ids);
    if v_n is null then
        return '{}';
    end if;
    insert into windlass.job_log (id, sequence, lease_id, number, at, attempt, level, message)
    select p_id[a.n], k.top + x.number - k.done, p_lease[a.n], x.number, x.at, p_attempt[a.n], x.level, x.message
    from unnest(v_n) a(n)
    cross join lateral (
        select coalesce(max(g.sequence), 0) as top,
               coalesce(max(g.number) filter (where g.lease_id = p_lease[a.n]), 0) as done
        from windlass.job_log g where g.id = p_id[a.n]) k
    join unnest(p_of, p_number, p_at, p_level, p_message) x(place, number, at, level, message) on x.place = a.n
    where x.number > k.done
    on conflict do nothing;
    delete from windlass.job_log g using unnest(v_ids) u(id)
    where g.id = u.id and g.sequence <= (select max(h.sequence) from windlass.job_log h where h.id = u.id) - p_keep;
    return v_n;
end $$;

-- ---- usage

-- What jobs have cost (OPS-6), by UTC day. In the lock order these rows come last, sorted by their key.
create table windlass.usage (
    day date not null,
    tenant_id uuid not null,
    handler text not null,
    jobs bigint not null,
    cents bigint not null,
    units bigint not null,
    primary key (day, tenant_id, handler)
) with (fillfactor = 70);
-- Each cost by itself, for other systems to read. Its sequence is given by whoever reads first: one made by the writers
-- would show readers a later one before an earlier one whose transaction takes longer, and they would miss that.
create sequence windlass.usage_seq;
create table windlass.usage_event (
    n bigint generated always as identity primary key,
    sequence bigint,
    id bigint not null,
    tenant_id uuid not null,
    handler text not null,
    cents bigint not null,
    units bigint not null,
    at timestamptz not null
);
create unique index usage_event_sequence on windlass.usage_event (sequence) where sequence is not null;
create index usage_event_tenant on windlass.usage_event (tenant_id, sequence) where sequence is not null;
create index usage_event_new on windlass.usage_event (n) where sequence is null;
create index usage_event_at on windlass.usage_event (at);

-- Adds what jobs have cost. p_ended says of each whether it came with the end of its job.
create function windlass.add_usage(p_id bigint[], p_cents bigint[], p_units bigint[], p_ended boolean[]) returns void
language plpgsql set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
begin
    with e as (
        insert into windlass.usage_event (id, tenant_id, handler, cents, units, at)
        select j.id, j.tenant_id, j.handler, u.cents, u.units, v_now
        from unnest(p_id, p_cents, p_units) u(id, cents, units)
        cross join lateral (select id, tenant_id, handler from windlass.job where job.id = u.id offset 0) j),
    s as (
        select j.tenant_id, j.handler, count(*) filter (where u.ended) as jobs, sum(u.cents) as cents, sum(u.units) as units
        from unnest(p_id, p_cents, p_units, p_ended) u(id, cents, units, ended)
        cross join lateral (select tenant_id, handler from windlass.job where job.id = u.id offset 0) j
        group by j.tenant_id, j.handler order by j.tenant_id, j.handler)
    insert into windlass.usage as u (day, tenant_id, handler, jobs, cents, units)
    select (v_now at time zone 'UTC')::date, s.tenant_id, s.handler, s.jobs, s.cents, s.units from s
    on conflict (day, tenant_id, handler) do update
    -- A sum that is too large must not keep a job from ending.
    set jobs = u.jobs + excluded.jobs,
        cents = least(9e18, greatest(-9e18, u.cents::numeric + excluded.cents))::bigint,
        units = least(9e18, greatest(-9e18, u.units::numeric + excluded.units))::bigint;
end $$;

-- The same as `finish`, for attempts of which some have cost something: [{"n": place, "cents": .., "units": ..}].
create function windlass.finish_costed(
    p_node bigint, p_leases bigint[], p_lease bigint[], p_id bigint[], p_attempt integer[], p_ran bigint[],
    p_op smallint[], p_keep bigint[], p_output json[], p_failed integer[], p_delay bigint[], p_text text[],
    p_error json[], p_follow json, p_cost json
) returns table (o_n int[], o_status smallint[]) language plpgsql as $$
#variable_conflict use_column
declare
    f record;
    c record;
begin
    select * into f from windlass.finish(p_node, p_leases, p_lease, p_id, p_attempt, p_ran, p_op, p_keep, p_output,
        p_failed, p_delay, p_text, p_error, p_follow);
    select array_agg(p_id[a.n]) as ids, array_agg((e.v ->> 'cents')::bigint) as cents,
           array_agg((e.v ->> 'units')::bigint) as units, array_agg(a.status in (6, 7, 8)) as ended
    into c
    from json_array_elements(p_cost) e(v)
    join unnest(f.o_n, f.o_status) a(n, status) on a.n = (e.v ->> 'n')::int;
    if c.ids is not null then
        perform windlass.add_usage(c.ids, c.cents, c.units, c.ended);
    end if;
    return query select f.o_n, f.o_status;
end $$;

-- Records a cost on someone's behalf. False if the job is not there.
create function windlass.record_cost(p_tenant uuid, p_id bigint, p_by text, p_cents bigint, p_units bigint) returns boolean
language plpgsql as $$
#variable_conflict use_column
declare
    v_tenant uuid;
begin
    select j.tenant_id into v_tenant from windlass.job j
    where j.id = p_id and (p_tenant is null or j.tenant_id = p_tenant)
      and not exists (select 1 from windlass.outcome o where o.id = p_id and o.purge_at <= clock_timestamp());
    if not found then
        return false;
    end if;
    insert into windlass.audit (tenant_id, actor, action, target, detail)
    values (v_tenant, p_by, 'COST_RECORDED', p_id::text, p_cents || ' cents, ' || p_units || ' units');
    perform windlass.add_usage(array[p_id], array[p_cents], array[p_units], array[false]);
    return true;
end $$;

-- Gives a sequence to at most p_limit costs that have none. One at a time, until its transaction has ended: so a higher
-- sequence is never seen before a lower one.
create function windlass.publish_usage(p_limit int) returns void language plpgsql as $$
#variable_conflict use_column
begin
    if not exists (select 1 from windlass.usage_event e where e.sequence is null) then
        return;
    end if;
    perform pg_advisory_xact_lock(7238934417284650002);
    update windlass.usage_event e set sequence = s.sequence
    from (select d.n, nextval('windlass.usage_seq') as sequence
          from (select c.n from windlass.usage_event c where c.sequence is null order by c.n limit p_limit) d) s
    where e.n = s.n;
end $$;

-- Forgets costs that are too old, at most p_limit of each kind.
create function windlass.clean_usage(p_events bigint, p_days int, p_limit int) returns void language plpgsql as $$
#variable_conflict use_column
begin
    delete from windlass.usage_event e where e.n = any (array(
        select d.n from windlass.usage_event d where d.at <= clock_timestamp() - p_events * interval '1 microsecond'
        order by d.at limit p_limit));
    delete from windlass.usage u where (u.day, u.tenant_id, u.handler) in (
        select d.day, d.tenant_id, d.handler from windlass.usage d
        where d.day < (clock_timestamp() at time zone 'UTC')::date - p_days order by d.day limit p_limit);
end $$;
