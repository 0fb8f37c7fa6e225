-- Plain jobs of one submit, in order of chunk; the first `p_now` are due at once. Arrays that hold nothing are empty.
create or replace function windlass.submit_plain(
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

-- The library's fast path for tenants whose submits are limited. Answers null, or what is exceeded.
create or replace function windlass.submit_plain_within(
    p_use_tenants uuid[], p_use_jobs bigint[], p_use_bytes bigint[],
    p_node bigint, p_lease bigint, p_now int,
    p_ids bigint[], p_tenants uuid[], p_handlers text[], p_queues text[], p_priorities smallint[], p_payloads json[],
    p_run_at timestamptz[], p_delays bigint[], p_batches bigint[], p_correlations text[], p_tags json[], p_specs json[],
    p_chunk_queues text[], p_chunk_ranks smallint[], p_chunk_tenants uuid[], p_chunk_positions bigint[],
    p_chunk_from int[], p_chunk_to int[]
) returns json language plpgsql as $$
#variable_conflict use_column
declare
    v_over json := windlass.admit(p_use_tenants, p_use_jobs, p_use_bytes, true, false, true);
begin
    if v_over is null then
        perform windlass.submit_plain(p_node, p_lease, p_now, p_ids, p_tenants, p_handlers, p_queues, p_priorities,
            p_payloads, p_run_at, p_delays, p_batches, p_correlations, p_tags, p_specs, p_chunk_queues, p_chunk_ranks,
            p_chunk_tenants, p_chunk_positions, p_chunk_from, p_chunk_to);
    end if;
    return v_over;
end $$;
