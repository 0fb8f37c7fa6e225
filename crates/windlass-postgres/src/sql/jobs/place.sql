-- Jobs with a start time and nothing else: scheduled, or ready where the time has come.
create or replace function windlass.place_timed(p_ids bigint[]) returns void language plpgsql as $$
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

-- Puts stored jobs where they wait: behind other jobs, behind their ordering key, until their time, or ready. Answers the gated ones.
create or replace function windlass.place_jobs(p_ids bigint[], p_resumed boolean default false) returns bigint[] language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    j record;
    v_holder bigint;
    v_gated bigint[] := case when p_resumed then '{}'::bigint[] else windlass.place_dependents(p_ids) end;
    v_rest bigint[];
    v_ids bigint[]; v_queues text[]; v_ranks smallint[]; v_tenants uuid[]; v_n int;
begin
    -- By key, so that two batches take the same keys in the same order; within a key by id.
    for j in
        select j.* from unnest(p_ids) x(id)
        cross join lateral (select id, tenant_id, ordering_key, priority, queue, run_at, created_at from windlass.job
                            where job.id = x.id offset 0) j
        where j.ordering_key is not null and j.id <> all (v_gated)
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
