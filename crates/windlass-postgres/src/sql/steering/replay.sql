-- Puts a dead letter back to work in place. Answers 8, or the status it has, -1 not found, -5 it has not ended.
create or replace function windlass.replay(p_tenant uuid, p_id bigint, p_by text) returns int language plpgsql as $$
#variable_conflict use_column
declare
    j record;
    o record;
    v_gated bigint[];
begin
    select d.tenant_id, d.spec into j from windlass.job d where d.id = p_id and (p_tenant is null or d.tenant_id = p_tenant);
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
    insert into windlass.counter_delta (tenants, statuses, counts, untils)
    values (array[j.tenant_id], array[8], array[-1], array[o.purge_at]);
    perform windlass.count_member(p_id, j.spec, 8::smallint, -1);
    insert into windlass.audit (tenant_id, actor, action, target)
    values (j.tenant_id, p_by, 'JOB_REPLAYED', p_id::text);
    perform windlass.note_feed(array[p_id], case when v_gated = '{}' then 0 else 3 end, array[0]);
    return 8;
end $$;
