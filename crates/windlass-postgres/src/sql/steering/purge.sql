-- Removes an ended job now. False if it is not there or has not ended.
create or replace function windlass.purge(p_tenant uuid, p_id bigint, p_by text) returns boolean language plpgsql as $$
#variable_conflict use_column
declare
    v_tenant uuid;
    v_key text;
    v_status smallint;
    v_purge_at timestamptz;
begin
    select j.tenant_id, j.ordering_key, o.status, o.purge_at into v_tenant, v_key, v_status, v_purge_at
    from windlass.job j
    join windlass.outcome o on o.id = j.id and (o.purge_at is null or o.purge_at > clock_timestamp())
    where j.id = p_id and (p_tenant is null or j.tenant_id = p_tenant) for update of o;
    if not found then
        return false;
    end if;
    perform windlass.remove_jobs(array[p_id]);
    -- It has ended, and is gone before its time.
    insert into windlass.counter_delta (tenants, statuses, counts, untils)
    values (array[v_tenant, v_tenant], array[v_status, v_status], array[-1, 1], array[v_purge_at, '-infinity']);
    if v_key is not null then
        perform windlass.pass_on_keys(array[v_tenant], array[v_key]);
    end if;
    insert into windlass.audit (tenant_id, actor, action, target) values (v_tenant, p_by, 'JOB_PURGED', p_id::text);
    return true;
end $$;
