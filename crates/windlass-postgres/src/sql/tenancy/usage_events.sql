-- The costs of tenant $1 (null for all) after sequence $2, at most $3. usage_event_sequence, usage_event_tenant.
select e.sequence, e.id, e.tenant_id, e.handler, e.cents, e.units, e.at from windlass.usage_event e
where e.sequence > $2 and ($1::uuid is null or e.tenant_id = $1)
order by e.sequence limit $3
