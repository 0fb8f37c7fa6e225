-- Cancels job p_id of tenant p_tenant (null for all). Codes: 0 to 8 are statuses, -1 not found, -2 moving too fast,
-- -3 canceled now, -4 requested.
-- The notes say in the history what was done: to a job that waits, to one that runs.
create or replace function windlass.cancel(
    p_tenant uuid, p_id bigint, p_by text, p_reason text, p_canceled_note text, p_requested_note text
) returns int language plpgsql set jit = off as $$
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
                p_canceled_note);
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
                        p_requested_note);
                insert into windlass.audit (tenant_id, actor, action, target, detail)
                values (j.tenant_id, p_by, 'JOB_CANCELED', p_id::text, 'requested: ' || p_reason);
            end if;
            return -4;
        end if;
    end loop;
    return -2;
end $$;
