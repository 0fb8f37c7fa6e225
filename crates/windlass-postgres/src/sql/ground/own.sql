-- The tenant that this transaction is for. A setting that was set for one transaction is empty afterwards, not null.
create or replace function windlass.tenant() returns uuid language sql stable as
$$ select nullif(current_setting('windlass.tenant', true), '')::uuid $$;

-- Whether a job is the tenant's: what the policies of tables ask that have no tenant of their own. A function, because its
-- plan is kept: as a part of every statement the weeks of `job` would be planned once for each such table.
create or replace function windlass.is_own(p_id bigint) returns boolean language plpgsql stable
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    return exists (select 1 from windlass.job j where j.id = p_id and j.tenant_id = windlass.tenant());
end $$;

-- Stops a tenant's write to a job that is not its own, before the engine carries it out.
create or replace function windlass.check_own(p_id bigint) returns void language plpgsql stable as $$
#variable_conflict use_column
begin
    if not windlass.is_own(p_id) then
        raise exception 'windlass: job % is not there', p_id using errcode = 'P0002';
    end if;
end $$;
