-- Pauses a target, or ends its pause, each with an audit entry. False where it is so already: the first pause is kept.

create or replace function windlass.pause(p_target text, p_tenant uuid, p_by text, p_reason text) returns boolean
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

create or replace function windlass.resume(p_target text, p_tenant uuid, p_by text) returns boolean language plpgsql as $$
#variable_conflict use_column
begin
    delete from windlass.pause p where p.target = p_target;
    if not found then
        return false;
    end if;
    insert into windlass.audit (tenant_id, actor, action, target) values (p_tenant, p_by, 'RESUMED', p_target);
    return true;
end $$;
