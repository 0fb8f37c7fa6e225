-- Revoke API key $2 of tenant $1, or of any, unless it was before, with its audit entry.
with k as (
    update windlass.api_key set revoked_at = clock_timestamp()
    where id = $2 and ($1::uuid is null or tenant_id = $1) and revoked_at is null returning tenant_id, name, rights),
a as (
    insert into windlass.audit (tenant_id, actor, action, target, detail)
    select k.tenant_id, $3, 'KEY_REVOKED', $2, k.name || ' (' || k.rights || ')' from k)
select count(*) from k
