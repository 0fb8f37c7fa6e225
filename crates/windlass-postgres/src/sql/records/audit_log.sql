-- The audit log of tenant $1 (null for all), newest first; action $2, target $3 and only what is
-- older than $5 if given. audit_tenant, audit_target or the primary key.
select at, tenant_id, actor, action, target, detail, id from windlass.audit
where ($1::uuid is null or tenant_id = $1) and ($2::text is null or action = $2) and ($3::text is null or target = $3)
  and ($5::bigint is null or id < $5)
order by id desc limit $4
