-- Sets or clears (null) the policy of a tenant, or the default one (null).
create or replace function windlass.set_quota(p_tenant uuid, p_policy json, p_by text) returns void language plpgsql as $$
#variable_conflict use_column
declare
    v_key uuid := coalesce(p_tenant, 'ffffffff-ffff-ffff-ffff-ffffffffffff');
begin
    -- One change after the other.
    update windlass.quota_version v set n = v.n + 1;
    delete from windlass.quota q where q.tenant_id = v_key;
    if p_policy is not null then
        insert into windlass.quota (tenant_id, weight, queued, rate, burst, running, bytes)
        values (v_key, (p_policy ->> 'weight')::int, (p_policy ->> 'queued')::bigint,
                (p_policy -> 'submit_rate' ->> 'per_second')::float8, (p_policy -> 'submit_rate' ->> 'burst')::bigint,
                (p_policy ->> 'running')::bigint, (p_policy ->> 'bytes')::bigint);
    end if;
    -- What was not limited was not counted: the next submit counts anew.
    delete from windlass.tenant_use u where p_tenant is null or u.tenant_id = p_tenant;
    delete from windlass.tenant_use_delta u where p_tenant is null or u.tenant_id = p_tenant;
    insert into windlass.audit (tenant_id, actor, action, target, detail)
    values (p_tenant, p_by, case when p_policy is null then 'QUOTA_CLEARED' else 'QUOTA_SET' end,
            coalesce('tenant:' || p_tenant, 'default'), p_policy::text);
end $$;
