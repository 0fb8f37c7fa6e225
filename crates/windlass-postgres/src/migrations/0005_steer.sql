-- What people do to jobs. Codes: 0 to 8 are statuses, -1 not found, -2 moving too fast, -3 canceled now, -4 requested.

-- Ends a job that waits, whose place the caller has emptied.
create function windlass.end_waiting(
    p_id bigint, p_tenant uuid, p_spec json, p_failed integer, p_recoveries integer, p_reason text, p_note text
) returns void language plpgsql as $$
#variable_conflict use_column
begin
    insert into windlass.outcome (id, finished_at, purge_at, status, attempt, failed, recoveries, reason, note)
    values (p_id, clock_timestamp(), clock_timestamp() + windlass.keep_of(p_spec), 7, p_failed + p_recoveries, p_failed,
            p_recoveries, p_reason, p_note);
    insert into windlass.counter_delta (tenants, statuses, counts) values (array[p_tenant], array[7], array[1]);
    delete from windlass.checkpoint c where c.id = p_id;
    perform windlass.note_feed(array[p_id], 7, array[p_failed + p_recoveries]);
end $$;

-- Takes a waiting job out of its place. Answers its counts, or nulls if it does not wait (or, with p_fresh, has been
-- attempted before).
create function windlass.take_waiting(
    p_id bigint, p_tenant uuid, p_fresh boolean, out o_failed integer, out o_recoveries integer)
language plpgsql as $$
#variable_conflict use_column
declare
    c record;
begin
    delete from windlass.scheduled s where s.id = p_id and not (p_fresh and s.failed + s.recoveries > 0)
    returning s.failed, s.recoveries into o_failed, o_recoveries;
    if found then return; end if;
    delete from windlass.gated g where g.id = p_id and not (p_fresh and g.failed + g.recoveries > 0)
    returning g.failed, g.recoveries into o_failed, o_recoveries;
    if found then return; end if;
    -- No index leads from a job to its chunk: chunks live shortly, and an index would cost every job.
    select r.ctid, r.failed, r.recoveries, cardinality(r.ids) as jobs into c from windlass.ready r
    where r.tenant_id = p_tenant and r.ids @> array[p_id]
      and not (p_fresh and r.failed + r.recoveries > 0) limit 1 for update;
    if not found then return; end if;
    if c.jobs = 1 then
        delete from windlass.ready r where r.ctid = c.ctid;
    else
        update windlass.ready r set ids = array_remove(r.ids, p_id), first = (array_remove(r.ids, p_id))[1]
        where r.ctid = c.ctid;
    end if;
    if not found then
        raise exception 'windlass: the chunk of job % moved while it was locked', p_id using errcode = '40001';
    end if;
    o_failed := c.failed;
    o_recoveries := c.recoveries;
end $$;

create function windlass.cancel(p_tenant uuid, p_id bigint, p_by text, p_reason text) returns int
language plpgsql set jit = off as $$
#variable_conflict use_column
declare
    j record;
    o record;
    w record;
    l record;
begin
    select d.tenant_id, d.spec into j from windlass.job d
    where d.id = p_id and (p_tenant is null or d.tenant_id = p_tenant);
    if not found then
        return -1;
    end if;
    -- The job may move while we look; each statement looks anew, and it can only move so often.
    for i in 1..20 loop
        select d.status, d.purge_at into o from windlass.outcome d where d.id = p_id;
        if found then
            return case when o.purge_at <= clock_timestamp() then -1 else o.status end;
        end if;
        w := windlass.take_waiting(p_id, j.tenant_id, false);
        if w.o_failed is not null then
            perform windlass.end_waiting(p_id, j.tenant_id, j.spec, w.o_failed, w.o_recoveries, p_reason,
                'canceled by ' || p_by);
            insert into windlass.audit (tenant_id, actor, action, target, detail)
            values (j.tenant_id, p_by, 'JOB_CANCELED', p_id::text, p_reason);
            return -3;
        end if;
        select d.lease_id, d.part, d.node_id, d.failed, d.recoveries, d.canceled into l
        from windlass.lease d where d.ids @> array[p_id] for update;
        if found then
            if p_id <> all (l.canceled) then
                update windlass.lease d set canceled = d.canceled || p_id, cancel_reasons = d.cancel_reasons || p_reason
                where d.lease_id = l.lease_id and d.part = l.part;
                insert into windlass.event (id, at, node_id, status, attempt, failed, recoveries, note)
                values (p_id, clock_timestamp(), l.node_id, 5, l.failed + l.recoveries + 1, l.failed, l.recoveries,
                        'cancel requested by ' || p_by || ': ' || p_reason);
                insert into windlass.audit (tenant_id, actor, action, target, detail)
                values (j.tenant_id, p_by, 'JOB_CANCELED', p_id::text, 'requested: ' || p_reason);
            end if;
            return -4;
        end if;
    end loop;
    return -2;
end $$;

create function windlass.replay(p_tenant uuid, p_id bigint, p_by text) returns int language plpgsql as $$
#variable_conflict use_column
declare
    j record;
    o record;
    v_gated bigint[];
begin
    select d.tenant_id into j from windlass.job d where d.id = p_id and (p_tenant is null or d.tenant_id = p_tenant);
    if not found then
        return -1;
    end if;
    select d.* into o from windlass.outcome d where d.id = p_id for update;
    if not found then
        return -5;
    elsif o.purge_at <= clock_timestamp() then
        return -1;
    elsif o.status <> 8 then
        return o.status;
    end if;
    delete from windlass.outcome d where d.id = p_id;
    insert into windlass.event (id, at, started_at, node_id, status, attempt, failed, recoveries, error, note)
    values (p_id, o.finished_at, o.started_at, o.node_id, 8, o.attempt, o.failed, o.recoveries, o.error, o.note);
    v_gated := windlass.place_jobs(array[p_id], true);
    insert into windlass.event (id, at, status, attempt, failed, recoveries, note)
    values (p_id, clock_timestamp(), case when v_gated = '{}' then 0 else 3 end, 0, 0, 0, 'replayed by ' || p_by);
    insert into windlass.counter_delta (tenants, statuses, counts) values (array[j.tenant_id], array[8], array[-1]);
    insert into windlass.audit (tenant_id, actor, action, target)
    values (j.tenant_id, p_by, 'JOB_REPLAYED', p_id::text);
    perform windlass.note_feed(array[p_id], case when v_gated = '{}' then 0 else 3 end, array[0]);
    return 8;
end $$;

create function windlass.mark_replayed(p_tenant uuid, p_id bigint, p_by text, p_as bigint, p_keep bigint)
returns boolean language plpgsql as $$
#variable_conflict use_column
declare
    v_tenant uuid;
begin
    select j.tenant_id into v_tenant from windlass.job j
    where j.id = p_id and (p_tenant is null or j.tenant_id = p_tenant);
    if not found then
        return false;
    end if;
    update windlass.outcome o set replayed_by = p_by, replayed_at = clock_timestamp(), replayed_as = p_as,
           purge_at = clock_timestamp() + p_keep * interval '1 microsecond'
    where o.id = p_id and o.status = 8 and (o.purge_at is null or o.purge_at > clock_timestamp());
    if not found then
        return false;
    end if;
    insert into windlass.audit (tenant_id, actor, action, target, detail)
    values (v_tenant, p_by, 'JOB_REPLAYED', p_id::text, 'as ' || p_as);
    return true;
end $$;

-- Removes ended jobs and everything that belongs to them. A unique window outlives its job.
create function windlass.remove_jobs(p_ids bigint[]) returns void language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
begin
    delete from windlass.outcome o where o.id = any (p_ids);
    delete from windlass.job j where j.id = any (p_ids);
    perform windlass.remove_side_rows(p_ids);
end $$;

create function windlass.remove_side_rows(p_ids bigint[]) returns void language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
begin
    delete from windlass.event e where e.id = any (p_ids);
    delete from windlass.progress p where p.id = any (p_ids);
    delete from windlass.job_log l where l.id = any (p_ids);
    delete from windlass.checkpoint c where c.id = any (p_ids);
    delete from windlass.job_key k where k.id = any (p_ids) and (k.until is null or k.until <= clock_timestamp());
end $$;

create function windlass.purge(p_tenant uuid, p_id bigint, p_by text) returns boolean language plpgsql as $$
#variable_conflict use_column
declare
    v_tenant uuid;
    v_key text;
begin
    select j.tenant_id, j.ordering_key into v_tenant, v_key from windlass.job j
    join windlass.outcome o on o.id = j.id and (o.purge_at is null or o.purge_at > clock_timestamp())
    where j.id = p_id and (p_tenant is null or j.tenant_id = p_tenant) for update of o;
    if not found then
        return false;
    end if;
    perform windlass.remove_jobs(array[p_id]);
    if v_key is not null then
        perform windlass.pass_on_keys(array[v_tenant], array[v_key]);
    end if;
    insert into windlass.audit (tenant_id, actor, action, target) values (v_tenant, p_by, 'JOB_PURGED', p_id::text);
    return true;
end $$;

create function windlass.pause(p_target text, p_tenant uuid, p_by text, p_reason text) returns boolean
language plpgsql as $$
#variable_conflict use_column
begin
    insert into windlass.pause (target, by, reason) values (p_target, p_by, p_reason) on conflict do nothing;
    if found then
        insert into windlass.audit (tenant_id, actor, action, target, detail)
        values (p_tenant, p_by, 'PAUSED', p_target, p_reason);
        return true;
    end if;
    return false;
end $$;

create function windlass.resume(p_target text, p_tenant uuid, p_by text) returns boolean language plpgsql as $$
#variable_conflict use_column
begin
    delete from windlass.pause p where p.target = p_target;
    if not found then
        return false;
    end if;
    insert into windlass.audit (tenant_id, actor, action, target) values (p_tenant, p_by, 'RESUMED', p_target);
    return true;
end $$;
