-- Keep an API key, with its audit entry.
with k as (
    insert into windlass.api_key (id, tenant_id, home, name, acts_as, rights, hash, expires_at, created_by)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9) returning created_at),
a as (
    insert into windlass.audit (tenant_id, actor, action, target, detail) values ($2, $9, 'KEY_CREATED', $1, $10))
select created_at from k
