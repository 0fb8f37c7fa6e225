-- The policy that holds for a tenant.
create or replace function windlass.quota_of(p_tenant uuid) returns setof windlass.quota language sql stable as
$$ select * from windlass.quota q
   where q.tenant_id in (p_tenant, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
   order by q.tenant_id = p_tenant desc limit 1 $$;
