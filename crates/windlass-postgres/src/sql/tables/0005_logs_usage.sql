-- What handlers say while they run, and what jobs cost.

-- What jobs said while they ran (BEY-7), the newest lines only. `number` counts the lines of a lease, so that a repeated
-- write adds nothing; `sequence` counts those of the job.
create table windlass.job_log (
    id bigint not null,
    sequence bigint not null,
    lease_id bigint not null,
    number bigint not null,
    at timestamptz not null,
    attempt integer not null,
    level smallint not null,
    message text not null,
    primary key (id, sequence),
    constraint job_log_range check (sequence between 0 and 4611686018427387904 and number between 0 and 4611686018427387904)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- What jobs have cost (OPS-6), by UTC day. In the lock order these rows come last, sorted by their key.
create table windlass.usage (
    day date not null,
    tenant_id uuid not null,
    handler text not null,
    jobs bigint not null,
    cents bigint not null,
    units bigint not null,
    primary key (day, tenant_id, handler),
    constraint usage_jobs check (jobs between -1000000000000000 and 1000000000000000)
) with (fillfactor = 70);
-- Each cost by itself, for other systems to read. Its sequence is given by whoever reads first: one made by the writers
-- would show readers a later one before an earlier one whose transaction takes longer, and they would miss that.
create sequence windlass.usage_seq;
create table windlass.usage_event (
    n bigint generated always as identity primary key,
    sequence bigint,
    id bigint not null,
    tenant_id uuid not null,
    handler text not null,
    cents bigint not null,
    units bigint not null,
    at timestamptz not null
);
create unique index usage_event_sequence on windlass.usage_event (sequence) where sequence is not null;
create index usage_event_tenant on windlass.usage_event (tenant_id, sequence) where sequence is not null;
create index usage_event_new on windlass.usage_event (n) where sequence is null;
create index usage_event_at on windlass.usage_event (at);

-- What each job has cost so far, as long as the job is there.
create table windlass.job_cost (
    id bigint not null primary key,
    cents bigint not null,
    units bigint not null,
    constraint job_cost_range check (cents between -1000000000000000 and 1000000000000000
        and units between -1000000000000000 and 1000000000000000)
) with (fillfactor = 70);
