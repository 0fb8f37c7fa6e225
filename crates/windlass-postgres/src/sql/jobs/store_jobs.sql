-- Stores jobs of any kind, given as JSON, for the engine, whose own jobs have reserved names. Not part of the SQL surface:
-- that is submit_jobs.
create or replace function windlass.store_jobs(p_jobs json) returns table (id bigint, duplicate boolean) language plpgsql
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
        if j.v -> 'tags' is not null then
            perform windlass.check_tags(j.v -> 'tags');
        end if;
        perform windlass.check_spec(j.v -> 'spec');
        if json_typeof(j.v -> 'start') = 'object' and not isfinite((j.v -> 'start' ->> 'at')::timestamptz) then
            perform windlass.refuse('run_at', 'it must be a finite time');
        end if;
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

-- The same within the quotas. What is stored already needs no room, so they are counted after the store, and a refusal undoes
-- the call.
create or replace function windlass.store_jobs_within(p_jobs json, p_lock boolean, p_enforce boolean)
returns table (id bigint, duplicate boolean) language plpgsql as $$
#variable_conflict use_column
declare
    v_ids bigint[]; v_duplicate boolean[];
begin
    select array_agg(s.id), array_agg(s.duplicate) into v_ids, v_duplicate from windlass.store_jobs(p_jobs) s;
    perform windlass.admit_stored(
        array(select u.id from unnest(v_ids, v_duplicate) u(id, duplicate) where not u.duplicate), p_lock, p_enforce);
    return query select u.id, u.duplicate from unnest(v_ids, v_duplicate) u(id, duplicate);
end $$;
