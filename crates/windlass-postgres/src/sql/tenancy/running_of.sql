-- How many jobs of tenant $1 run, as claims count them. lease_tenant.
select coalesce(sum(cardinality(l.ids)), 0)::bigint from windlass.lease l where l.tenant_id = $1
