-- A packed count holds jobs of several tenants in one row, as a lease does: the tenant's own comes out as in
-- reads/running.sql.
create or replace function windlass.own_deltas() returns table (status smallint, n bigint)
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    v_tenant uuid := windlass.tenant();
begin
    return query
    select u.status, u.n from windlass.counter_delta d
    cross join unnest(d.tenants, d.statuses, d.counts, d.untils) u(tenant_id, status, n, until)
    where u.tenant_id = v_tenant and u.status is not null and u.n is not null
      and (u.until is null or u.until > clock_timestamp());
end $$;
revoke execute on function windlass.own_deltas() from public;

-- Counts that are not folded yet, of tenant p_tenant (null for all). What is gone by now is not counted.
create or replace function windlass.deltas(p_tenant uuid) returns table (status smallint, n bigint)
language plpgsql stable rows 100 as $$
#variable_conflict use_column
begin
    if not has_table_privilege('windlass.counter_delta', 'select') then
        return query select * from windlass.own_deltas();
        return;
    end if;
    return query
    select u.status, u.n from windlass.counter_delta d
    cross join unnest(d.tenants, d.statuses, d.counts, d.untils) u(tenant_id, status, n, until)
    where (p_tenant is null or u.tenant_id = p_tenant) and u.status is not null and u.n is not null
      and (u.until is null or u.until > clock_timestamp());
end $$;

-- The ended jobs that can be seen, of tenant p_tenant (null for all), in parts to add up by status.
create or replace function windlass.ended(p_tenant uuid) returns table (status smallint, n bigint) language sql stable as
$$ select c.status, c.n - c.gone from windlass.counter c where p_tenant is null or c.tenant_id = p_tenant
   union all
   select e.status, -e.n from windlass.counter_end e
   where e.until <= clock_timestamp() and (p_tenant is null or e.tenant_id = p_tenant)
   union all
   select d.status, d.n from windlass.deltas(p_tenant) d $$;
