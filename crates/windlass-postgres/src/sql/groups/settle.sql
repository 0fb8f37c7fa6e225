-- Puts stored jobs that wait for others behind their gate, with the edges to those. Answers which.
create or replace function windlass.place_dependents(p_ids bigint[]) returns bigint[] language plpgsql as $$
#variable_conflict use_column
declare
    v_ids bigint[] := '{}';
    j record;
begin
    for j in
        select j.*, windlass.json_text(j.spec, 'after') as after from unnest(p_ids) x(id)
        cross join lateral (select id, tenant_id, created_at, run_at, priority, queue, spec from windlass.job
                            where job.id = x.id offset 0) j
        where j.spec is not null and windlass.json_text(j.spec, 'after') is not null
        order by j.id
    loop
        insert into windlass.edge (parent_id, child_id)
        select e.parent::bigint, j.id from json_array_elements_text(j.after::json -> 'of') e(parent) on conflict do nothing;
        insert into windlass.gated (id, tenant_id, created_at, run_at, rank, queue, gate)
        values (j.id, j.tenant_id, j.created_at, j.run_at, windlass.rank_of(j.priority), j.queue, 'parents:');
        insert into windlass.event (id, at, status, attempt, failed, recoveries) values (j.id, j.created_at, 3, 0, 0, 0);
        v_ids := v_ids || j.id;
    end loop;
    return v_ids;
end $$;

-- Counts the end of a job in its batch, if it was added to one as a part; p_n is -1 for one that was replayed.
create or replace function windlass.count_member(p_id bigint, p_spec json, p_status smallint, p_n int) returns void
language plpgsql as $$
#variable_conflict use_column
begin
    if p_spec is null or windlass.json_text(p_spec, 'part') is null then
        return;
    end if;
    insert into windlass.batch_delta (batch_id, succeeded, canceled, dead)
    select j.batch_id, case when p_status = 6 then p_n else 0 end, case when p_status = 7 then p_n else 0 end,
           case when p_status = 8 then p_n else 0 end
    from windlass.job j where j.id = p_id and j.batch_id is not null;
end $$;

-- Ends a job that waited, whose place the caller has emptied: 7 canceled, 8 a dead letter.
create or replace function windlass.end_dependent(
    p_id bigint, p_status smallint, p_keep bigint, p_reason text, p_error json
) returns void language plpgsql as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_purge_at timestamptz := windlass.gone_at(v_now, p_keep);
    j record;
begin
    select d.tenant_id, d.spec into j from windlass.job d where d.id = p_id;
    insert into windlass.outcome (id, finished_at, purge_at, status, attempt, failed, recoveries, reason, error)
    values (p_id, v_now, v_purge_at, p_status, 0, 0, 0, p_reason, p_error) on conflict do nothing;
    if not found then
        return;
    end if;
    insert into windlass.counter_delta (tenants, statuses, counts, untils)
    values (array[j.tenant_id], array[p_status], array[1], array[v_purge_at]);
    if p_status = 8 then
        insert into windlass.audit (at, tenant_id, actor, action, target, detail)
        values (v_now, j.tenant_id, 'windlass', 'JOB_FAILED', p_id::text, windlass.json_text(p_error, 'code'));
    end if;
    perform windlass.count_member(p_id, j.spec, p_status, 1);
    perform windlass.note_feed(array[p_id], p_status, array[0]);
end $$;

-- Carries out what was decided about jobs that wait for others, each only if it still does. p_status: 7 or 8 for one that
-- ends, null for one that goes on. Answers the status of each, null where it did not wait any more.
create or replace function windlass.settle(
    p_ids bigint[], p_status smallint[], p_keep bigint[], p_reason text[], p_error json[], p_follow json
) returns smallint[] language plpgsql set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_settled smallint[] := array_fill(null::smallint, array[cardinality(p_ids)]);
    s record;
    g record;
    v_key text;
    v_holder bigint;
    v_follow json;
begin
    for s in select * from unnest(p_ids, p_status, p_keep, p_reason, p_error) with ordinality
                           u(id, status, keep, reason, error, n) order by u.id loop
        delete from windlass.gated d where d.id = s.id and d.gate = 'parents:' returning d.* into g;
        continue when not found;
        if s.status is not null then
            perform windlass.end_dependent(s.id, s.status, s.keep, s.reason, s.error);
            v_settled[s.n] := s.status;
            continue;
        end if;
        select j.ordering_key into v_key from windlass.job j where j.id = s.id;
        if v_key is not null then
            insert into windlass.key_holder as k (tenant_id, ordering_key, id) values (g.tenant_id, v_key, s.id)
            on conflict (tenant_id, ordering_key) do update set id = k.id returning k.id into v_holder;
        end if;
        if v_key is not null and v_holder <> s.id then
            insert into windlass.gated (id, tenant_id, created_at, run_at, rank, queue, gate)
            values (s.id, g.tenant_id, g.created_at, g.run_at, g.rank, g.queue, 'key:' || v_key);
            v_settled[s.n] := 3;
        elsif g.run_at > clock_timestamp() then
            insert into windlass.scheduled (run_at, id, tenant_id, kind, rank, queue)
            values (g.run_at, s.id, g.tenant_id, 1, g.rank, g.queue);
            v_settled[s.n] := 1;
        else
            perform windlass.make_ready(array[s.id], array[g.queue], array[g.rank], array[g.tenant_id], array[0], array[0],
                array[false], false);
            v_settled[s.n] := 0;
        end if;
    end loop;
    if p_follow is not null then
        select json_agg(f.value -> 'job') into v_follow from json_array_elements(p_follow) f
        where v_settled[(f.value ->> 'n')::int] is not null;
        if v_follow is not null then
            perform windlass.store_jobs_within(v_follow, false, false);
        end if;
    end if;
    return v_settled;
end $$;
