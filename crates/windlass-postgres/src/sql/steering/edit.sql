-- Changes a waiting job (BEY-5); null leaves a thing as it is. The start is now (p_now), at p_at or p_delay microseconds
-- from now. The place of the job is locked first, as for a cancel: a claim has the job before, or all of the edit. This is
-- the one exception to a row of `job` that never changes. Answers with the status the job waits in from now on, or 5 to 8
-- where it runs or has ended, -1 not found, -2 moving too fast, -6 it cannot start now because of o_gate; and the queue
-- it waits in.
create or replace function windlass.edit(
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
