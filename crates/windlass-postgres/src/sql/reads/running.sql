-- A lease holds jobs of several tenants in one row, which no policy can divide: nobody but the engine reads that table.
-- What is the tenant's own comes out through this function, which runs as the engine and answers for the tenant of the
-- setting alone; without one it answers nothing.
create or replace function windlass.own_running(p_ids bigint[])
returns table (id bigint, node_id bigint, claimed_at timestamptz, failed integer, recoveries integer, canceled boolean)
language plpgsql stable security definer rows 100
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_tenant uuid := windlass.tenant();
begin
    if v_tenant is null then
        return;
    end if;
    return query
    select u.id, l.node_id, l.claimed_at, l.failed, l.recoveries, u.id = any (l.canceled)
    from windlass.lease l cross join unnest(l.ids) u(id)
    cross join lateral (select 1 from windlass.job j where j.id = u.id and j.tenant_id = v_tenant offset 0) j
    where p_ids is null or (u.id in (select w.id from unnest(p_ids) w(id)) and (cardinality(p_ids) > 1 or l.ids @> p_ids));
end $$;
-- The engine's answers to tenants are nobody else's, with walls or without.
revoke execute on function windlass.own_running(bigint[]) from public;

-- The jobs that run (p_ids: among these), for whoever asks: all of them for those who may read leases, else their own.
create or replace function windlass.running(p_ids bigint[] default null)
returns table (id bigint, node_id bigint, claimed_at timestamptz, failed integer, recoveries integer, canceled boolean)
language plpgsql stable rows 100 set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    if not has_table_privilege('windlass.lease', 'select') then
        return query select * from windlass.own_running(p_ids);
        return;
    end if;
    return query
    select u.id, l.node_id, l.claimed_at, l.failed, l.recoveries, u.id = any (l.canceled)
    from windlass.lease l cross join unnest(l.ids) u(id)
    where p_ids is null or (u.id in (select w.id from unnest(p_ids) w(id)) and (cardinality(p_ids) > 1 or l.ids @> p_ids));
end $$;
