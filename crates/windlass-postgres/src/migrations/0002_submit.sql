-- How jobs get in: the library's fast path, the general path (also the SQL surface), and plain INSERTs.

-- The rank of a priority. The lowest priority has no negative counterpart.
create function windlass.rank_of(p_priority smallint) returns smallint language sql immutable as
$$ select least(32767, -p_priority::int)::smallint $$;

-- Packs waiting jobs into ready chunks. Suspects (a node was lost with them) wait one by one. Jobs that waited before
-- go to the front; the others take their tenant's turn, which `p_remember` keeps for the next ones.
create function windlass.make_ready(
    p_ids bigint[], p_queues text[], p_ranks smallint[], p_tenants uuid[], p_failed integer[],
    p_recoveries integer[], p_resumed boolean[], p_front boolean, p_remember boolean default false
) returns int language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_jobs int;
begin
    with x as (
        select u.*, row_number() over (partition by u.queue, u.rank, u.tenant_id, u.failed, u.recoveries, u.resumed
                                       order by u.n) - 1 as k
        from unnest(p_ids, p_queues, p_ranks, p_tenants, p_failed, p_recoveries, p_resumed)
             with ordinality u(id, queue, rank, tenant_id, failed, recoveries, resumed, n)),
    c as (
        select queue, rank, tenant_id, failed, recoveries, resumed, min(k) as k, array_agg(id order by n) as ids
        from x group by queue, rank, tenant_id, failed, recoveries, resumed,
                        case when recoveries > 0 then k else k / 128 end),
    r as (
        insert into windlass.ready (queue, rank, position, first, tenant_id, failed, recoveries, resumed, ids)
        select c.queue, c.rank,
               case when p_front then coalesce(l.served, 0)
                    else greatest(coalesce(l.served, 0), coalesce(t.next, 0)) + c.k end,
               c.ids[1], c.tenant_id, c.failed, c.recoveries, c.resumed, c.ids
        from c
        left join lateral (select served from windlass.line l
                           where l.queue = c.queue and l.rank = c.rank offset 0) l on true
        left join lateral (select next from windlass.tenant_line t
                           where not p_front and t.queue = c.queue and t.rank = c.rank and t.tenant_id = c.tenant_id
                           offset 0) t on true
        returning queue, rank, tenant_id, position, cardinality(ids) as jobs),
    t as (
        -- Only crowds are worth a row: a tenant with a few jobs is not ahead of anybody.
        insert into windlass.tenant_line (queue, rank, tenant_id, next)
        select queue, rank, tenant_id, max(position + jobs) from r where p_remember
        group by queue, rank, tenant_id having sum(jobs) >= 128 order by 1, 2, 3
        on conflict (queue, rank, tenant_id) do update set next = greatest(tenant_line.next, excluded.next))
    select coalesce(sum(jobs), 0) into v_jobs from r;
    return v_jobs;
end $$;

-- Plain jobs of one submit, in order of chunk; the first `p_now` are due at once. Arrays that hold nothing are empty.
create function windlass.submit_plain(
    p_node bigint, p_lease bigint, p_now int,
    p_ids bigint[], p_tenants uuid[], p_handlers text[], p_queues text[], p_priorities smallint[], p_payloads json[],
    p_run_at timestamptz[], p_delays bigint[], p_batches bigint[], p_correlations text[], p_tags json[], p_specs json[],
    p_chunk_queues text[], p_chunk_ranks smallint[], p_chunk_tenants uuid[], p_chunk_positions bigint[],
    p_chunk_from int[], p_chunk_to int[]
) returns timestamptz language plpgsql
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_leased boolean := false;
begin
    perform set_config('windlass.packed', 'on', true);
    insert into windlass.job (id, created_at, run_at, tenant_id, batch_id, priority, queue, handler, payload,
                              correlation_id, tags, spec)
    select u.id, v_now,
           case when coalesce(u.run_at, v_now + u.delay * interval '1 microsecond') > v_now
                then coalesce(u.run_at, v_now + u.delay * interval '1 microsecond') end,
           u.tenant_id, u.batch_id, u.priority, u.queue, u.handler, u.payload, u.correlation_id,
           case when u.tags is not null then array(select json_array_elements_text(u.tags)) end, u.spec
    from unnest(p_ids, p_tenants, p_handlers, p_queues, p_priorities, p_payloads, p_run_at, p_delays, p_batches,
                p_correlations, p_tags, p_specs)
         u(id, tenant_id, handler, queue, priority, payload, run_at, delay, batch_id, correlation_id, tags, spec);
    perform set_config('windlass.packed', 'off', true);
    if p_lease is not null and p_now > 0 then
        -- A node that was declared dead gets nothing: its jobs are ready for the others.
        v_leased := exists (select 1 from windlass.node where node_id = p_node);
        if v_leased then
            insert into windlass.lease (lease_id, part, node_id, claimed_at, failed, recoveries, ids)
            select p_lease, k, p_node, v_now, 0, 0, p_ids[k * 128 + 1:least((k + 1) * 128, p_now)]
            from generate_series(0, (p_now - 1) / 128) k;
        end if;
    end if;
    if not v_leased and cardinality(p_chunk_from) > 0 then
        insert into windlass.ready (queue, rank, position, first, tenant_id, ids)
        select c.queue, c.rank, greatest(c.position, coalesce(l.served, 0)), p_ids[c.lo], c.tenant_id, p_ids[c.lo:c.hi]
        from unnest(p_chunk_queues, p_chunk_ranks, p_chunk_tenants, p_chunk_positions, p_chunk_from, p_chunk_to)
             c(queue, rank, tenant_id, position, lo, hi)
        left join lateral (select served from windlass.line l
                           where l.queue = c.queue and l.rank = c.rank offset 0) l on true;
    end if;
    if cardinality(p_ids) > p_now then
        perform windlass.place_timed(p_ids[p_now + 1:]);
    end if;
    return v_now;
end $$;

-- Jobs with a start time and nothing else: scheduled, or ready where the time has come.
create function windlass.place_timed(p_ids bigint[]) returns void language plpgsql as $$
#variable_conflict use_column
declare
    v_ids bigint[]; v_queues text[]; v_ranks smallint[]; v_tenants uuid[]; v_n int;
begin
    insert into windlass.scheduled (run_at, id, tenant_id, kind, rank, queue)
    select j.run_at, j.id, j.tenant_id, 1, windlass.rank_of(j.priority), j.queue
    from unnest(p_ids) x(id)
    cross join lateral (select * from windlass.job where job.id = x.id offset 0) j
    where j.run_at is not null;
    get diagnostics v_n = row_count;
    if v_n < cardinality(p_ids) then
        select array_agg(j.id order by j.id), array_agg(j.queue order by j.id),
               array_agg(windlass.rank_of(j.priority) order by j.id), array_agg(j.tenant_id order by j.id)
        into v_ids, v_queues, v_ranks, v_tenants
        from unnest(p_ids) x(id)
        cross join lateral (select * from windlass.job where job.id = x.id offset 0) j
        where j.run_at is null;
        v_n := cardinality(v_ids);
        perform windlass.make_ready(v_ids, v_queues, v_ranks, v_tenants, array_fill(0, array[v_n]),
            array_fill(0, array[v_n]), array_fill(false, array[v_n]), false);
    end if;
end $$;

-- Puts stored jobs where they wait: behind their ordering key, until their time, or ready. Answers the gated ones.
create function windlass.place_jobs(p_ids bigint[], p_resumed boolean default false) returns bigint[] language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    j record;
    v_holder bigint;
    v_gated bigint[] := '{}';
    v_rest bigint[];
    v_ids bigint[]; v_queues text[]; v_ranks smallint[]; v_tenants uuid[]; v_n int;
begin
    -- By key, so that two batches take the same keys in the same order; within a key by id.
    for j in
        select j.* from unnest(p_ids) x(id)
        cross join lateral (select id, tenant_id, ordering_key, priority, queue, run_at, created_at from windlass.job
                            where job.id = x.id offset 0) j
        where j.ordering_key is not null
        order by j.tenant_id, j.ordering_key collate "C", j.id
    loop
        insert into windlass.key_holder as k (tenant_id, ordering_key, id) values (j.tenant_id, j.ordering_key, j.id)
        on conflict (tenant_id, ordering_key) do update set id = k.id
        returning k.id into v_holder;
        if v_holder <> j.id then
            insert into windlass.gated (id, tenant_id, created_at, run_at, rank, queue, gate, resumed)
            values (j.id, j.tenant_id, j.created_at, j.run_at, windlass.rank_of(j.priority), j.queue, 'key:' || j.ordering_key,
                    p_resumed);
            if not p_resumed then
                insert into windlass.event (id, at, status, attempt, failed, recoveries)
                values (j.id, j.created_at, 3, 0, 0, 0);
            end if;
            v_gated := v_gated || j.id;
        end if;
    end loop;
    if not p_resumed then
        insert into windlass.expiry (at, id)
        select (j.spec ->> 'expires_at')::timestamptz, j.id
        from unnest(p_ids) x(id) cross join lateral (select id, spec from windlass.job where job.id = x.id offset 0) j
        where j.spec is not null and j.spec ->> 'expires_at' is not null;
    end if;
    v_rest := case when v_gated = '{}' then p_ids
                   else array(select id from unnest(p_ids) id where id <> all (v_gated)) end;
    insert into windlass.scheduled (run_at, id, tenant_id, kind, rank, queue, resumed)
    select j.run_at, j.id, j.tenant_id, 1, windlass.rank_of(j.priority), j.queue, p_resumed
    from unnest(v_rest) x(id) cross join lateral (select * from windlass.job where job.id = x.id offset 0) j
    -- It is only set where it lay ahead at the submit; one that is replayed may be long past it.
    where j.run_at is not null and (not p_resumed or j.run_at > clock_timestamp());
    get diagnostics v_n = row_count;
    if v_n < cardinality(v_rest) then
        select array_agg(j.id order by x.n), array_agg(j.queue order by x.n),
               array_agg(windlass.rank_of(j.priority) order by x.n), array_agg(j.tenant_id order by x.n)
        into v_ids, v_queues, v_ranks, v_tenants
        from unnest(v_rest) with ordinality x(id, n)
        cross join lateral (select * from windlass.job where job.id = x.id offset 0) j
        where not exists (select 1 from windlass.scheduled s where s.id = j.id);
        v_n := coalesce(cardinality(v_ids), 0);
        if v_n > 0 then
            perform windlass.make_ready(v_ids, v_queues, v_ranks, v_tenants, array_fill(0, array[v_n]),
                array_fill(0, array[v_n]), array_fill(p_resumed, array[v_n]), false);
        end if;
    end if;
    return v_gated;
end $$;

-- Keys longer than an index row allows are kept as a hash beside their beginning.
create function windlass.stored_key(p_key text) returns text language sql immutable as
$$ select case when octet_length(p_key) <= 512 then p_key
               else left(p_key, 64) || '#' || encode(sha256(convert_to(p_key, 'UTF8')), 'hex') end $$;

-- Takes a key for job p_id. Answers who has it: p_id itself, or the job that holds it. `p_batch` are earlier jobs of the
-- same call that will be stored: their rows are not there yet, and they count as alive.
create function windlass.take_key(
    p_kind "char", p_tenant uuid, p_scope text, p_key text, p_id bigint, p_until timestamptz, p_batch bigint[]
) returns bigint language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_holder record;
    v_ended record;
    v_free boolean;
begin
    -- Each round is a new look: the winner of a race may have committed after the insert's own snapshot.
    for i in 1..20 loop
        insert into windlass.job_key (kind, tenant_id, scope, key, id, until)
        values (p_kind, p_tenant, p_scope, p_key, p_id, p_until) on conflict do nothing;
        if found then
            return p_id;
        end if;
        select k.id, k.until into v_holder from windlass.job_key k
        where k.kind = p_kind and k.tenant_id = p_tenant and k.scope = p_scope and k.key = p_key for update;
        continue when not found;
        if v_holder.id = p_id or v_holder.id = any (p_batch) then
            return v_holder.id;
        end if;
        if p_kind = 'u' and v_holder.until is not null then
            v_free := v_holder.until <= clock_timestamp();
        else
            select o.purge_at into v_ended from windlass.outcome o where o.id = v_holder.id;
            if found then
                v_free := p_kind = 'u' or v_ended.purge_at <= clock_timestamp();
            else
                v_free := not exists (select 1 from windlass.job j where j.id = v_holder.id);
            end if;
        end if;
        if v_free is not true then
            return v_holder.id;
        end if;
        update windlass.job_key k set id = p_id, until = p_until
        where k.kind = p_kind and k.tenant_id = p_tenant and k.scope = p_scope and k.key = p_key;
        return p_id;
    end loop;
    raise exception 'windlass: the key % changes hands too fast', p_key using errcode = '40001';
end $$;

-- The keys of jobs given as JSON, with the place of their job.
create function windlass.keys_of(p_jobs json, p_now timestamptz)
returns table (n int, kind "char", tenant uuid, scope text, key text, until timestamptz) language sql stable as
$$ select e.n::int, 'i'::"char", coalesce((e.v ->> 'tenant')::uuid, '00000000-0000-0000-0000-000000000000'),
          e.v ->> 'handler', windlass.stored_key(e.v ->> 'idempotency_key'), null::timestamptz
   from json_array_elements(p_jobs) with ordinality e(v, n) where e.v ->> 'idempotency_key' is not null
   union all
   select e.n::int, 'u'::"char", coalesce((e.v ->> 'tenant')::uuid, '00000000-0000-0000-0000-000000000000'),
          '', windlass.stored_key(e.v -> 'unique' ->> 'key'),
          case when json_typeof(e.v -> 'unique' -> 'within') = 'object' then p_now
               + least((e.v -> 'unique' -> 'within' ->> 'window')::numeric, 3e12)::float8 * interval '1 ms' end
   from json_array_elements(p_jobs) with ordinality e(v, n) where e.v -> 'unique' ->> 'key' is not null $$;

create function windlass.refuse(p_field text, p_message text) returns void language plpgsql as $$
#variable_conflict use_column
begin
    raise exception 'windlass: invalid %: %', p_field, p_message using errcode = '22023', column = p_field;
end $$;

create function windlass.check_job(p_handler text, p_queue text, p_priority int, p_payload json, p_key text,
                                   p_ordering_key text, p_delay_us numeric) returns void language plpgsql as $$
#variable_conflict use_column
begin
    if p_handler is null or p_handler = '' or octet_length(p_handler) > 200 then
        perform windlass.refuse('handler', 'it must have 1 to 200 bytes');
    elsif p_queue is null or p_queue = '' or octet_length(p_queue) > 200 then
        perform windlass.refuse('queue', 'it must have 1 to 200 bytes');
    elsif p_priority is null or p_priority not between -32768 and 32767 then
        perform windlass.refuse('priority', 'it must be between -32768 and 32767');
    elsif p_payload is null then
        perform windlass.refuse('payload', 'it must be JSON, and not an SQL null');
    elsif octet_length(p_payload::text) > 4194304 then
        perform windlass.refuse('payload', octet_length(p_payload::text) || ' bytes, at most 4194304 are allowed');
    elsif p_key = '' or octet_length(p_key) > 256 then
        perform windlass.refuse('idempotency_key', 'it must have 1 to 256 bytes');
    elsif p_ordering_key = '' or octet_length(p_ordering_key) > 256 then
        perform windlass.refuse('ordering_key', 'it must have 1 to 256 bytes');
    elsif p_delay_us < 0 then
        perform windlass.refuse('delay', 'it must not be negative');
    end if;
end $$;

-- The general way in: a JSON array of jobs, as the library writes them. Only `handler` is required. In order of input,
-- each with its id, or with the id of the job that has its key.
create function windlass.submit_jobs(p_jobs json) returns table (id bigint, duplicate boolean) language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    j record;
    v_count int := json_array_length(p_jobs);
    v_ids bigint[] := array_fill(null::bigint, array[v_count]);
    v_holders bigint[] := array_fill(null::bigint, array[v_count]);
    v_new bigint[] := '{}';
    v_stored bigint[];
    k record;
    v_last int;
    v_rows int;
begin
    if v_count = 0 then
        return;
    end if;
    for j in select e.value as v, e.ordinality::int as n from json_array_elements(p_jobs) with ordinality e loop
        v_ids[j.n] := coalesce((j.v ->> 'id')::bigint, windlass.next_id());
        perform windlass.check_job(j.v ->> 'handler', coalesce(j.v ->> 'queue', 'default'),
            coalesce((j.v ->> 'priority')::int, 0), coalesce(j.v -> 'payload', '{}'), j.v ->> 'idempotency_key',
            j.v ->> 'ordering_key',
            case when json_typeof(j.v -> 'start') = 'object' then (j.v -> 'start' ->> 'after')::numeric end);
    end loop;
    v_holders := v_ids;
    v_stored := v_ids;
    -- All keys at once, in order of key, so that two batches cannot wait for each other. Usually all are free.
    with k as (
        select k.*, row_number() over (partition by k.kind, k.tenant, k.scope, k.key order by k.n) as place
        from windlass.keys_of(p_jobs, v_now) k),
    i as (
        insert into windlass.job_key (kind, tenant_id, scope, key, id, until)
        select k.kind, k.tenant, k.scope, k.key, v_ids[k.n], k.until from k where k.place = 1
        order by k.kind, k.tenant, k.scope, k.key
        on conflict do nothing returning 1)
    select (select count(*) from k) - (select count(*) from i) into v_rows;
    if v_rows > 0 then
        perform 1 from windlass.job_key d
        join windlass.keys_of(p_jobs, v_now) k
            on k.kind = d.kind and k.tenant = d.tenant_id and k.scope = d.scope and k.key = d.key
        order by d.kind, d.tenant_id, d.scope, d.key for update of d;
        -- One by one in order of input: a job may be the duplicate of an earlier one of the same call.
        v_stored := '{}';
        for k in select * from windlass.keys_of(p_jobs, v_now) d order by d.n, d.kind loop
            if v_last is distinct from k.n then
                if v_holders[v_last] = v_ids[v_last] then
                    v_stored := v_stored || v_ids[v_last];
                end if;
                v_last := k.n;
            end if;
            continue when v_holders[k.n] <> v_ids[k.n];
            v_holders[k.n] := windlass.take_key(k.kind, k.tenant, k.scope, k.key, v_ids[k.n], k.until, v_stored);
        end loop;
        v_stored := array(select h.id from unnest(v_holders, v_ids) h(id, own) where h.id = h.own);
        -- Keys that jobs took which are not stored after all.
        delete from windlass.job_key d where d.id = any (v_ids) and d.id <> all (v_stored);
    end if;
    perform set_config('windlass.packed', 'on', true);
    with n as (
        insert into windlass.job (id, created_at, run_at, tenant_id, batch_id, priority, queue, handler, payload,
                                  correlation_id, ordering_key, tags, spec)
        select v_ids[e.n], v_now, case when d.due > v_now then d.due end,
               coalesce((e.v ->> 'tenant')::uuid, '00000000-0000-0000-0000-000000000000'),
               (e.v ->> 'batch')::bigint, coalesce((e.v ->> 'priority')::smallint, 0::smallint),
               coalesce(e.v ->> 'queue', 'default'), e.v ->> 'handler', coalesce(e.v -> 'payload', '{}'),
               e.v ->> 'correlation_id', e.v ->> 'ordering_key',
               case when json_typeof(e.v -> 'tags') = 'array' and json_array_length(e.v -> 'tags') > 0
                    then array(select json_array_elements_text(e.v -> 'tags')) end,
               case when json_typeof(e.v -> 'spec') = 'object' and (e.v -> 'spec')::text <> '{}' then e.v -> 'spec' end
        from json_array_elements(p_jobs) with ordinality e(v, n)
        cross join lateral (
            select case when json_typeof(e.v -> 'start') = 'object' then
                coalesce((e.v -> 'start' ->> 'at')::timestamptz,
                         v_now + least((e.v -> 'start' ->> 'after')::numeric, 3e12)::float8 * interval '1 ms') end as due) d
        where v_holders[e.n] = v_ids[e.n]
        order by e.n
        returning job.id)
    select coalesce(array_agg(n.id), '{}') into v_new from n;
    perform set_config('windlass.packed', 'off', true);
    perform windlass.place_jobs(v_new);
    return query select h.id, h.id <> i.id
        from unnest(v_holders) with ordinality h(id, n) join unnest(v_ids) with ordinality i(id, n) using (n) order by n;
end $$;

-- One job from any language:
--   select windlass.submit('mail.send', '{"to": "a@example.org"}', delay => '5 minutes', idempotency_key => 'mail-7');
create function windlass.submit(
    handler text, payload json default '{}', tenant uuid default '00000000-0000-0000-0000-000000000000',
    priority int default 0, run_at timestamptz default null, delay interval default null,
    idempotency_key text default null, ordering_key text default null, tags text[] default null,
    queue text default 'default', correlation_id text default null, spec json default null, batch bigint default null
) returns bigint language plpgsql as $$
#variable_conflict use_column
declare
    v_start json := windlass.start_of(run_at, delay);
    v_id bigint;
begin
    perform windlass.check_job(handler, queue, priority, payload, idempotency_key, ordering_key, null);
    select s.id into v_id from windlass.submit_jobs_within(json_build_array(json_build_object(
        'handler', handler, 'payload', payload, 'tenant', tenant, 'priority', priority, 'start', v_start,
        'idempotency_key', idempotency_key, 'ordering_key', ordering_key, 'tags', to_json(tags), 'queue', queue,
        'correlation_id', correlation_id, 'spec', spec, 'batch', batch::text))) s;
    return v_id;
end $$;

-- Many jobs of one handler; the ids in order of the payloads.
create function windlass.submit_many(
    handler text, payloads json, tenant uuid default '00000000-0000-0000-0000-000000000000',
    priority int default 0, run_at timestamptz default null, delay interval default null,
    tags text[] default null, queue text default 'default', correlation_id text default null,
    spec json default null, batch bigint default null
) returns setof bigint language plpgsql as $$
#variable_conflict use_column
declare
    v_start json := windlass.start_of(run_at, delay);
begin
    if payloads is null or json_typeof(payloads) <> 'array' then
        perform windlass.refuse('payloads', 'it must be a JSON array');
    end if;
    return query select s.id from windlass.submit_jobs_within((
        select coalesce(json_agg(json_build_object(
            'handler', handler, 'payload', e.value, 'tenant', tenant, 'priority', priority, 'start', v_start,
            'tags', to_json(tags), 'queue', queue, 'correlation_id', correlation_id, 'spec', spec,
            'batch', batch::text) order by e.ordinality), '[]')
        from json_array_elements(payloads) with ordinality e)) s;
end $$;

create function windlass.start_of(p_run_at timestamptz, p_delay interval) returns json language plpgsql as $$
#variable_conflict use_column
begin
    if p_run_at is not null and p_delay is not null then
        perform windlass.refuse('delay', 'give run_at or delay, not both');
    elsif p_delay < interval '0' then
        perform windlass.refuse('delay', 'it must not be negative');
    elsif p_delay is not null then
        return json_build_object('after', (extract(epoch from p_delay) * 1000)::bigint);
    elsif p_run_at is not null then
        return json_build_object('at', p_run_at);
    end if;
    return null;
end $$;

-- Plain INSERT INTO windlass.job from any ORM: packed at the end of the statement. Everything above switches it off around
-- its own insert. Not by a setting of the function: only superusers may create functions that set a name of our own.
create function windlass.pack() returns trigger language plpgsql as $$
#variable_conflict use_column
declare
    v_ids bigint[];
begin
    perform windlass.check_job(n.handler, n.queue, n.priority, n.payload, null, n.ordering_key, null) from new_rows n;
    select array_agg(n.id order by n.id) into v_ids from new_rows n;
    if v_ids is not null then
        perform windlass.place_jobs(v_ids);
        perform windlass.admit_stored(v_ids, false, true);
    end if;
    return null;
end $$;
create trigger pack after insert on windlass.job referencing new table as new_rows for each statement
    when (current_setting('windlass.packed', true) is distinct from 'on') execute function windlass.pack();
