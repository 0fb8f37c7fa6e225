-- Records a cost on someone's behalf. False if the job is not there.
create or replace function windlass.record_cost(p_tenant uuid, p_id bigint, p_by text, p_cents bigint, p_units bigint) returns boolean
language plpgsql as $$
#variable_conflict use_column
declare
    v_tenant uuid;
begin
    select j.tenant_id into v_tenant from windlass.job j
    where j.id = p_id and (p_tenant is null or j.tenant_id = p_tenant)
      and not exists (select 1 from windlass.outcome o where o.id = p_id and o.purge_at <= clock_timestamp());
    if not found then
        return false;
    end if;
    insert into windlass.audit (tenant_id, actor, action, target, detail)
    values (v_tenant, p_by, 'COST_RECORDED', p_id::text, p_cents || ' cents, ' || p_units || ' units');
    perform windlass.add_usage(array[p_id], array[p_cents], array[p_units], array[false]);
    return true;
end $$;
