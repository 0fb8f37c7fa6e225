-- Takes at most p_max ready jobs under one new lease: first up to p_quota of each band, then by urgency. A line is one
-- rank of one queue; lines come in order of band, queue and rank, each with a position below which nothing live is
-- expected. A sweep looks at every rank from the very front: it finds what the hints hide (late committers, unusual
-- priorities). The first row of the answer describes the claim: its chunks in order, each with the part of the lease that
-- its jobs are in, and the ids. The others are the jobs, in no order. With p_caps the tenants' limits on running jobs are
-- kept to: a part of the lease then holds jobs of one tenant and names it, and chunks of tenants that are full are passed
-- over.
create or replace function windlass.claim(
    p_node bigint, p_lease bigint, p_max int, p_quota int[], p_queues text[], p_limits int[],
    p_line_queues int[], p_line_ranks smallint[], p_line_hints bigint[], p_chunk int, p_sweep boolean,
    p_caps boolean default false, p_tenant uuid default null
) returns table (
    now timestamptz, more int, line_queues int[], line_ranks smallint[],
    chunk_lines int[], chunk_positions bigint[], chunk_jobs int[], chunk_tenants uuid[], chunk_parts smallint[],
    chunk_failed integer[], chunk_recoveries integer[], ids bigint[],
    id bigint, handler text, priority smallint, payload json, created_at timestamptz, run_at timestamptz,
    ordering_key text, batch_id bigint, correlation_id text, tags text[], spec json, checkpoint json,
    chunk_resumed boolean[]
) language plpgsql
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    -- Asked again: a limit may have been set since the caller looked.
    v_caps boolean := p_caps or exists (select 1 from windlass.quota q where q.running is not null);
    v_line_queues int[] := p_line_queues;
    v_line_ranks smallint[] := p_line_ranks;
    v_line_hints bigint[] := p_line_hints;
    v_limits int[] := p_limits;
    v_quota int[] := p_quota;
    v_empty boolean[];
    v_taken int := 0;
    v_more int := 0;
    v_want int; v_got int; v_jobs int; v_rows int; v_rank int; v_band int; v_queue int; v_limit int; v_gone int;
    c record;
    v_ctids tid[];
    v_ids bigint[] := '{}'; v_resumed bigint[] := '{}';
    v_chunk_lines int[] := '{}'; v_chunk_positions bigint[] := '{}'; v_chunk_jobs int[] := '{}';
    v_chunk_tenants uuid[] := '{}'; v_chunk_parts smallint[] := '{}';
    v_chunk_failed integer[] := '{}'; v_chunk_recoveries integer[] := '{}'; v_chunk_resumed boolean[] := '{}';
    v_part smallint := 0; v_part_ids bigint[] := '{}'; v_part_failed integer; v_part_recoveries integer;
    v_low bigint; v_high bigint;
    v_part_tenant uuid; v_full uuid[] := '{}'; v_capped uuid[] := '{}'; v_rooms bigint[] := '{}'; v_room bigint; v_at int;
    v_take int;
begin
    -- A claim that a crash of the server undoes leaves its jobs ready; the first finisher then finds no lease.
    perform set_config('synchronous_commit', 'off', true);
    if p_max <= 0 or not exists (select 1 from windlass.node d where d.node_id = p_node) then
        return;
    end if;
    if p_sweep then
        v_line_queues := '{}'; v_line_ranks := '{}';
        for q in 1..cardinality(p_queues) loop
            v_rank := -100000;
            loop
                select r.rank into v_rank from windlass.ready r
                where r.queue = p_queues[q] and r.rank > v_rank order by r.rank limit 1;
                exit when not found;
                v_line_queues := v_line_queues || q;
                v_line_ranks := v_line_ranks || v_rank::smallint;
            end loop;
        end loop;
        select array_agg(l.q order by b.band, l.q, l.rank), array_agg(l.rank order by b.band, l.q, l.rank),
               array_agg('-9223372036854775808'::bigint)
        into v_line_queues, v_line_ranks, v_line_hints
        from unnest(v_line_queues, v_line_ranks) l(q, rank)
        cross join lateral (select case when l.rank <= -20 then 1 when l.rank <= -10 then 2 when l.rank <= 0 then 3
                                        else 4 end as band) b;
    end if;
    v_empty := array_fill(false, array[coalesce(cardinality(v_line_queues), 0)]);
    for v_pass in 1..2 loop
        for i in 1..coalesce(cardinality(v_line_queues), 0) loop
            exit when v_taken >= p_max;
            continue when v_empty[i];
            v_queue := v_line_queues[i];
            v_rank := v_line_ranks[i];
            v_band := case when v_rank <= -20 then 1 when v_rank <= -10 then 2 when v_rank <= 0 then 3 else 4 end;
            v_want := least(p_max - v_taken, v_limits[v_queue]);
            if v_pass = 1 then
                v_want := least(v_want, v_quota[v_band]);
            end if;
            while v_want > 0 and not v_empty[i] loop
                v_limit := (v_want - 1) / p_chunk + 1;
                v_rows := 0;
                v_got := 0;
                v_ctids := '{}';
                -- Locks only what it fetches, and what it fetches is bounded: the expected number of chunks.
                for c in
                    select r.ctid, r.position, r.tenant_id, r.failed, r.recoveries, r.resumed, r.ids
                    from windlass.ready r
                    where r.queue = p_queues[v_queue] and r.rank = v_rank::smallint and r.position >= v_line_hints[i]
                      and (v_full = '{}' or r.tenant_id <> all (v_full))
                      and (p_tenant is null or r.tenant_id = p_tenant)
                    order by r.position, r.first limit v_limit for update skip locked
                loop
                    v_rows := v_rows + 1;
                    v_jobs := cardinality(c.ids);
                    v_take := v_want;
                    if v_caps then
                        continue when c.tenant_id = any (v_full);
                        v_at := array_position(v_capped, c.tenant_id);
                        if v_at is null then
                            v_capped := v_capped || c.tenant_id;
                            v_at := cardinality(v_capped);
                            v_rooms[v_at] := windlass.running_room(c.tenant_id);
                        end if;
                        v_room := v_rooms[v_at];
                        if v_room is not null then
                            v_take := least(v_take, v_room);
                            v_rooms[v_at] := v_room - least(v_jobs, v_take);
                            if v_rooms[v_at] = 0 then
                                v_full := v_full || c.tenant_id;
                            end if;
                            continue when v_take = 0;
                        end if;
                    end if;
                    v_ctids := v_ctids || c.ctid;
                    if v_jobs > v_take then
                        insert into windlass.ready (queue, rank, position, first, tenant_id, failed, recoveries,
                                                    resumed, ids)
                        values (p_queues[v_queue], v_rank, windlass.position_of(c.position + v_take),
                                c.ids[v_take + 1], c.tenant_id, c.failed, c.recoveries, c.resumed, c.ids[v_take + 1:]);
                        v_jobs := v_take;
                        c.ids := c.ids[1:v_take];
                        if v_take = v_want and not (c.tenant_id = any (v_full)) then
                            v_more := v_more | (1 << (v_band - 1));
                        end if;
                    end if;
                    v_ids := v_ids || c.ids;
                    if c.resumed then
                        v_resumed := v_resumed || c.ids;
                    end if;
                    if v_part_ids <> '{}' and (c.failed <> v_part_failed or c.recoveries <> v_part_recoveries
                                               or cardinality(v_part_ids) + v_jobs > 128
                                               or v_caps and c.tenant_id <> v_part_tenant) then
                        insert into windlass.lease (lease_id, part, node_id, claimed_at, failed, recoveries, ids, tenant_id)
                        values (p_lease, v_part, p_node, v_now, v_part_failed, v_part_recoveries, v_part_ids,
                                v_part_tenant);
                        v_part := v_part + 1;
                        v_part_ids := '{}';
                    end if;
                    v_part_ids := v_part_ids || c.ids;
                    v_part_failed := c.failed;
                    v_part_recoveries := c.recoveries;
                    if v_caps then
                        v_part_tenant := c.tenant_id;
                    end if;
                    v_chunk_parts := v_chunk_parts || v_part;
                    v_chunk_failed := v_chunk_failed || c.failed;
                    v_chunk_recoveries := v_chunk_recoveries || c.recoveries;
                    v_chunk_resumed := v_chunk_resumed || c.resumed;
                    v_chunk_lines := v_chunk_lines || i;
                    v_chunk_positions := v_chunk_positions || c.position;
                    v_chunk_jobs := v_chunk_jobs || v_jobs;
                    v_chunk_tenants := v_chunk_tenants || c.tenant_id;
                    v_want := v_want - v_jobs;
                    v_got := v_got + v_jobs;
                    exit when v_want = 0;
                end loop;
                if v_rows > 0 then
                    delete from windlass.ready r where r.ctid = any (v_ctids);
                    get diagnostics v_gone = row_count;
                    if v_gone <> cardinality(v_ctids) then
                        -- Locked rows cannot go away; were it otherwise, jobs would run twice.
                        raise exception 'windlass: % of % claimed chunks were there', v_gone, cardinality(v_ctids)
                            using errcode = '40001';
                    end if;
                end if;
                v_taken := v_taken + v_got;
                v_limits[v_queue] := v_limits[v_queue] - v_got;
                v_quota[v_band] := v_quota[v_band] - v_got;
                if v_rows < v_limit and v_want > 0 then
                    v_empty[i] := true;
                end if;
            end loop;
        end loop;
    end loop;
    for i in 1..coalesce(cardinality(v_line_queues), 0) loop
        v_rank := v_line_ranks[i];
        v_band := case when v_rank <= -20 then 1 when v_rank <= -10 then 2 when v_rank <= 0 then 3 else 4 end;
        if not v_empty[i] and v_more & (1 << (v_band - 1)) = 0 then
            if exists (select 1 from windlass.ready r
                       where r.queue = p_queues[v_line_queues[i]] and r.rank = v_rank::smallint
                         and r.position >= v_line_hints[i] and (v_full = '{}' or r.tenant_id <> all (v_full))
                         and (p_tenant is null or r.tenant_id = p_tenant)) then
                v_more := v_more | (1 << (v_band - 1));
            end if;
        end if;
    end loop;
    if v_part_ids <> '{}' then
        insert into windlass.lease (lease_id, part, node_id, claimed_at, failed, recoveries, ids, tenant_id)
        values (p_lease, v_part, p_node, v_now, v_part_failed, v_part_recoveries, v_part_ids, v_part_tenant);
    end if;
    return query select v_now, v_more, v_line_queues, v_line_ranks, v_chunk_lines, v_chunk_positions, v_chunk_jobs,
        v_chunk_tenants, v_chunk_parts, v_chunk_failed, v_chunk_recoveries, v_ids, null::bigint, null::text,
        null::smallint, null::json, null::timestamptz, null::timestamptz, null::text, null::bigint, null::text,
        null::text[], null::json, null::json, v_chunk_resumed;
    if v_taken = 0 then
        return;
    end if;
    -- The bounds let the scan leave out the weeks that none of them is in.
    select min(x.id), max(x.id) into v_low, v_high from unnest(v_ids) x(id);
    return query
    select null::timestamptz, null::int, null::int[], null::smallint[], null::int[], null::bigint[], null::int[],
           null::uuid[], null::smallint[], null::integer[], null::integer[], null::bigint[],
           j.id, j.handler, j.priority, j.payload, j.created_at, j.run_at, j.ordering_key, j.batch_id,
           j.correlation_id, j.tags, j.spec,
           case when j.id = any (v_resumed) then (select s.data from windlass.checkpoint s where s.id = j.id) end,
           null::boolean[]
    from windlass.job j where j.id = any (v_ids) and j.id between v_low and v_high;
end $$;
