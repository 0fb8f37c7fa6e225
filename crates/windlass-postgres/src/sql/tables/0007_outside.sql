-- What callers from outside need: API keys, of which only hashes are kept, values that all processes share, status events
-- while somebody reads them, and webhooks that are told of them.

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

-- The engine's alone. Without `until`, kept for good.
create table windlass.setting (
    name text not null primary key,
    value text not null,
    until timestamptz
);

-- Status events, the engine's alone: a reader joins the job, and hands each tenant its own. Written with the change itself,
-- while somebody wants them. Old rows are deleted in portions; two tables that take turns and are truncated would leave no
-- dead rows, but a truncate waits for readers, and every finish would wait behind it. Without an attempt where the outcome
-- has it.
create table windlass.feed (
    sequence bigint generated always as identity primary key,
    id bigint not null,
    status smallint not null,
    attempt integer,
    at timestamptz not null default clock_timestamp()
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
        autovacuum_analyze_threshold = 2000000000);

-- Until when somebody wants status events; one row.
create table windlass.feed_reader (
    id smallint not null primary key check (id = 1),
    until timestamptz not null
) with (fillfactor = 50);

-- `secret` is a JSON string, or its envelope where `sealed`. The engine's alone.
create table windlass.webhook (
    id text not null primary key,
    tenant_id uuid not null,
    url text not null,
    events smallint[] not null,
    handler text,
    secret json not null,
    sealed boolean not null,
    paused boolean not null default false,
    -- Since when it is told of events: since it was made, or last resumed.
    active_since timestamptz not null default clock_timestamp(),
    created_at timestamptz not null default clock_timestamp(),
    created_by text not null
);
create index webhook_tenant on windlass.webhook (tenant_id, created_at);

-- Who does what only one node may do at a time, and how far it has come. Without a node, it was let go; the row stays, so
-- that no epoch is ever used again.
create table windlass.holding (
    name text collate "C" not null primary key,
    node_id bigint,
    epoch bigint not null,
    until timestamptz not null,
    position bigint,
    constraint holding_range check (epoch between 0 and 4611686018427387904 and isfinite(until))
) with (fillfactor = 50);
