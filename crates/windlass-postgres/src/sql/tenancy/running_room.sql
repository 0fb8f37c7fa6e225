-- How many more jobs of a tenant may run; null without a limit. Where another claim is about to start some of them, none:
-- that one decides.
create or replace function windlass.running_room(p_tenant uuid) returns bigint language plpgsql
set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_cap bigint := (select q.running from windlass.quota_of(p_tenant) q);
begin
    if v_cap is null then
        return null;
    elsif not pg_try_advisory_xact_lock(7238934, hashtext(p_tenant::text)) then
        return 0;
    end if;
    return greatest(0, v_cap - (select coalesce(sum(cardinality(l.ids)), 0) from windlass.lease l
                                where l.tenant_id = p_tenant));
end $$;
