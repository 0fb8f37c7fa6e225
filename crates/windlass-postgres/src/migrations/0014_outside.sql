-- What callers from outside need: API keys, of which only hashes are kept, and values that all processes share.

-- Without a tenant, a key is for all of them; `home` is the tenant that its calls act for. A tenant may read its own keys,
-- but for the hash.
create table windlass.api_key (
    id text not null primary key,
    tenant_id uuid,
    home uuid not null,
    name text not null,
    acts_as text not null,
    rights text not null,
    hash bytea not null,
    created_at timestamptz not null default clock_timestamp(),
    created_by text not null,
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz
) with (fillfactor = 80);
create index api_key_tenant on windlass.api_key (tenant_id, created_at);

-- The engine's alone.
create table windlass.setting (
    name text not null primary key,
    value text not null
);
