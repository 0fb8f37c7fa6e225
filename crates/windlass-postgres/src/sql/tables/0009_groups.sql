-- Batches. Counts change by deltas that are written in the transaction which ends a job, added up when they are read, and
-- folded now and then: no row is hot, however many jobs of a batch end at once. Locked before the queue tables.
create table windlass.batch (
    id bigint not null primary key,
    tenant_id uuid not null,
    name text not null,
    key text,
    callback json,
    total bigint,                                    -- set when it is sealed; until then the sum of its parts
    succeeded bigint not null default 0,
    canceled bigint not null default 0,
    dead bigint not null default 0,
    created_at timestamptz not null default clock_timestamp(),
    sealed_at timestamptz,
    completed_at timestamptz,
    callback_job bigint,
    constraint batch_times check (isfinite(created_at) and isfinite(sealed_at) and isfinite(completed_at)),
    constraint batch_counts check (abs(total) < 1e15 and abs(succeeded) < 1e15 and abs(canceled) < 1e15 and abs(dead) < 1e15)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
create unique index batch_key on windlass.batch (tenant_id, key) where key is not null;
create index batch_unfinished on windlass.batch (tenant_id) where completed_at is null;
create index batch_sealed on windlass.batch (id) where sealed_at is not null and completed_at is null;
create index batch_completed on windlass.batch (completed_at) where completed_at is not null;

-- A part is added once.
create table windlass.batch_part (
    batch_id bigint not null,
    part bigint not null,
    jobs bigint not null,
    primary key (batch_id, part),
    constraint batch_part_jobs check (abs(jobs) < 1e15)
);

create table windlass.batch_delta (
    batch_id bigint not null,
    succeeded bigint not null,
    canceled bigint not null,
    dead bigint not null,
    constraint batch_delta_counts check (abs(succeeded) < 1e15 and abs(canceled) < 1e15 and abs(dead) < 1e15)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_threshold = 2000000000);
create index batch_delta_of on windlass.batch_delta (batch_id);

-- Who waits or waited for whom: the parent is a job or a batch. Goes with the child.
create table windlass.edge (
    parent_id bigint not null,
    child_id bigint not null,
    primary key (parent_id, child_id)
);
create index edge_child on windlass.edge (child_id, parent_id);
