-- Stores a job in place of a dead letter and marks that, once. Answers 8 and the new job, or -7 and the one it was replayed
-- as before. The letter's row is locked first: of two callers at once, the second finds it marked.
create or replace function windlass.replay_as(
    p_tenant uuid, p_id bigint, p_by text, p_job json, p_keep bigint, out o_code int, out o_id bigint)
language plpgsql as $$
#variable_conflict use_column
declare
    j record;
    o record;
    v_purge_at timestamptz := windlass.gone_at(clock_timestamp(), p_keep);
begin
    select d.tenant_id into j from windlass.job d where d.id = p_id and (p_tenant is null or d.tenant_id = p_tenant);
    if not found then
        o_code := -1;
        return;
    end if;
    select d.status, d.purge_at, d.replayed_as into o from windlass.outcome d where d.id = p_id for update;
    if not found then
        o_code := -5;
        return;
    end if;
    o_id := o.replayed_as;
    o_code := case when o.purge_at <= clock_timestamp() then -1 when o.replayed_as is not null then -7 else o.status end;
    if o_code <> 8 then
        return;
    end if;
    select s.id into o_id from windlass.store_jobs_within(json_build_array(p_job), true, true) s;
    update windlass.outcome d set replayed_by = p_by, replayed_at = clock_timestamp(), replayed_as = o_id,
           purge_at = v_purge_at
    where d.id = p_id;
    insert into windlass.counter_delta (tenants, statuses, counts, untils)
    values (array[j.tenant_id, j.tenant_id], array[8, 8], array[-1, 1], array[o.purge_at, v_purge_at]);
    insert into windlass.audit (tenant_id, actor, action, target, detail)
    values (j.tenant_id, p_by, 'JOB_REPLAYED', p_id::text, 'as ' || o_id);
end $$;
