-- The past, for charts: counts that nodes add up, in buckets of several lengths (resolution, in seconds), and how many jobs
-- were in each status. Nothing depends on it, so it is written without waiting for the disk.

-- A row without a tenant is of all tenants together, which operators read. `sums` are the numbers of `Sums::values`.
create table windlass.activity (
    at timestamptz not null,
    tenant_id uuid,
    resolution smallint not null,
    handler text collate "C" not null,
    sums bigint[] not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
create unique index activity_key on windlass.activity (resolution, tenant_id, at, handler) nulls not distinct;
create index activity_at on windlass.activity (resolution, at);

-- All tenants together, by status.
create table windlass.depth (
    at timestamptz not null,
    resolution smallint not null,
    counts bigint[] not null,
    primary key (resolution, at)
);
