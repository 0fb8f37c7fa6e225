-- What tenants may use and use. In the lock order, tenant_use (by tenant) comes last.

-- Policies. The default one, for every tenant without its own, has the key of ones.
create table windlass.quota (
    tenant_id uuid not null primary key,
    weight integer,
    queued bigint,
    rate double precision,                           -- tokens a second
    burst bigint,
    running bigint,
    bytes bigint,
    -- NaN is more than any number.
    constraint quota_range check (weight > 0 and queued >= 0 and rate > 0 and rate <= 1e9 and burst > 0 and running >= 0 and bytes >= 0)
);
-- Counts changes, so that nodes see with one look whether they know the policies.
create table windlass.quota_version (n bigint not null check (n between 0 and 1000000000000000));
insert into windlass.quota_version (n) values (0);

-- What is counted for tenants whose submits are limited. `jobs` minus what has ended since `ended` are unfinished.
create table windlass.tenant_use (
    tenant_id uuid not null primary key,
    jobs bigint not null,
    ended bigint not null,                           -- the tenant's ended jobs when `jobs` was right
    bytes bigint not null,                           -- of unfinished payloads, at most: an end takes nothing off
    counted_at timestamptz,                          -- when bytes were last counted, and how long that took
    counted_us bigint not null default 0,
    tokens double precision not null,
    filled_at timestamptz not null,
    constraint tenant_use_range check (jobs between -1000000000000000 and 1000000000000000
        and ended between -1000000000000000 and 1000000000000000 and bytes between -1000000000000000 and 1000000000000000
        and counted_us between 0 and 1000000000000000 and tokens between -1e19 and 1e19),
    constraint tenant_use_times check (isfinite(filled_at) and (counted_at is null or isfinite(counted_at)))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- What was stored inside someone's own transaction, which must not hold the tenant's row until it ends. Folded in by the
-- next submit that holds the row.
create table windlass.tenant_use_delta (
    tenant_id uuid not null,
    jobs bigint not null,
    bytes bigint not null,
    constraint tenant_use_delta_range check (jobs between -1000000000000000 and 1000000000000000
        and bytes between -1000000000000000 and 1000000000000000)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index tenant_use_delta_tenant on windlass.tenant_use_delta (tenant_id);

-- Whose jobs a part of a lease holds, where that tenant's running jobs are limited: then they are counted by it.
alter table windlass.lease add column tenant_id uuid;
create index lease_tenant on windlass.lease (tenant_id) where tenant_id is not null;
