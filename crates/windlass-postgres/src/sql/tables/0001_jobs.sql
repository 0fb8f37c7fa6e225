-- The tables. `job` and `outcome` only grow and are dropped by the week; the queue tables hold what waits or runs.
-- Lock order for every writer: lease (by lease_id and part), key_holder (by tenant, key), ready/scheduled/gated, then the rest.
-- The constraints refuse what statements could not compute with: an infinite time, a count whose sum does not fit, an array
-- in an array. One such row would make the statement fail that is for everyone's rows. What attempts count fits 16 bits in
-- the library; 1e15 jobs are more than any server keeps, and sums of as many such numbers as there are rows fit 64 bits;
-- positions and sequences stay below 2^62, so that what is added to them fits.

-- The two functions here are part of tables: an index is made of one, a default calls the other. All others are in
-- sql/<room>/, as decision 0009 says.

-- A field of a JSON object as text; null where there is none, and where the server cannot take the value apart: the type
-- json keeps an escaped NUL and half of a surrogate pair, and every operator on such a value fails.
create function windlass.json_text(p_json json, p_name text) returns text language plpgsql immutable as $$
#variable_conflict use_column
begin
    if strpos(p_json::text, '\u') = 0 then
        return p_json ->> p_name;
    end if;
    begin
        return p_json ->> p_name;
    exception when data_exception then
        return null;
    end;
end $$;

-- Ids made by the database itself carry the machine slot 1023, which no process is ever given.
create sequence windlass.id_seq cache 1;
create function windlass.next_id() returns bigint language sql volatile as
$$ select (((extract(epoch from clock_timestamp()) * 1000)::bigint - 1735689600000) << 22)
          | (1023::bigint << 12) | (nextval('windlass.id_seq') & 4095) $$;

-- Immutable. Insert only; the payload stays the text it came as.
create table windlass.job (
    id bigint not null default windlass.next_id(),
    created_at timestamptz not null default clock_timestamp(),
    run_at timestamptz,                              -- when it is due, if that lay ahead at the submit
    tenant_id uuid not null default '00000000-0000-0000-0000-000000000000',
    batch_id bigint,
    priority smallint not null default 0,
    queue text not null default 'default',
    handler text not null,
    payload json not null default '{}',
    correlation_id text,
    ordering_key text,
    tags text[],
    spec json,
    primary key (id),
    -- What nodes could not read, or maintenance not compute with. Plain inserts come past every other check.
    constraint job_tags check (tags is null or (coalesce(array_ndims(tags), 1) = 1 and array_position(tags, null) is null)),
    constraint job_times check (isfinite(created_at) and (run_at is null or isfinite(run_at)))
) partition by range (id);
create table windlass.job_default partition of windlass.job default;
-- For lists of one tenant, newest first. On an expression, because a second plain index with id in it invites a full
-- index scan where one row is meant.
create index job_tenant on windlass.job (tenant_id, (id + 0));
create index job_batch on windlass.job (batch_id) where batch_id is not null;
create index job_correlation on windlass.job (correlation_id) where correlation_id is not null;

-- One row per ended job. Updated only to mark a dead letter as replayed.
create table windlass.outcome (
    id bigint not null,
    finished_at timestamptz not null,
    started_at timestamptz,
    purge_at timestamptz,                            -- null: a dead letter that is kept for good
    node_id bigint,
    status smallint not null,
    attempt integer not null,
    failed integer not null,
    recoveries integer not null,
    reason text,
    note text,
    output json,
    error json,
    replayed_at timestamptz,
    replayed_as bigint,
    replayed_by text,
    primary key (id)
) partition by range (id);
create table windlass.outcome_default partition of windlass.outcome default;
create index outcome_dead on windlass.outcome (id) where status = 8;

-- The packed queue: one row per chunk of jobs. Never analysed: it is empty one moment and deep the next.
create table windlass.ready (
    position bigint not null,                        -- fair position within (queue, rank)
    first bigint not null,                           -- the first id: oldest first where positions are equal
    tenant_id uuid not null,
    rank smallint not null,                          -- minus the priority
    failed integer not null default 0,
    recoveries integer not null default 0,
    resumed boolean not null default false,          -- an earlier attempt may have left a checkpoint
    queue text not null,
    ids bigint[] not null,
    constraint ready_ids check (array_ndims(ids) = 1 and array_position(ids, null) is null),
    constraint ready_counts check (failed between 0 and 65535 and recoveries between 0 and 65535),
    constraint ready_position check (position between -4611686018427387904 and 4611686018427387904)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_threshold = 2000000000);
create index ready_claim on windlass.ready (queue, rank, position, first);

create table windlass.scheduled (
    run_at timestamptz not null,
    id bigint not null,
    tenant_id uuid not null,
    kind smallint not null,                          -- 1 scheduled, 2 retrying
    rank smallint not null,
    failed integer not null default 0,
    recoveries integer not null default 0,
    resumed boolean not null default false,
    queue text not null,
    constraint scheduled_run_at check (isfinite(run_at)),
    constraint scheduled_counts check (failed between 0 and 65535 and recoveries between 0 and 65535)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_threshold = 2000000000);
create index scheduled_due on windlass.scheduled (run_at, id);
create unique index scheduled_id on windlass.scheduled (id);

create table windlass.gated (
    id bigint not null,
    tenant_id uuid not null,
    created_at timestamptz not null,                 -- the line of a key is in order of submission, by this clock
    run_at timestamptz,                              -- due then, if the gate opens earlier
    rank smallint not null,
    failed integer not null default 0,
    recoveries integer not null default 0,
    resumed boolean not null default false,
    queue text not null,
    gate text collate "C" not null,
    constraint gated_run_at check (run_at is null or isfinite(run_at)),
    constraint gated_counts check (failed between 0 and 65535 and recoveries between 0 and 65535)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_threshold = 2000000000);
create index gated_gate on windlass.gated (gate, tenant_id, created_at, id);
create unique index gated_id on windlass.gated (id);

create table windlass.key_holder (
    tenant_id uuid not null,
    ordering_key text collate "C" not null,
    id bigint not null,
    primary key (tenant_id, ordering_key)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- What nodes hold: a claim is one lease, its jobs in parts of at most 128 with the same counts. The lease is the fence of
-- its jobs: made by the node, never reused. Parts are short so that an ended job rewrites little, and nothing is toasted.
create table windlass.lease (
    lease_id bigint not null,
    part smallint not null,
    node_id bigint not null,
    claimed_at timestamptz not null default clock_timestamp(),
    failed integer not null,
    recoveries integer not null,
    ids bigint[] not null,
    canceled bigint[] not null default '{}',         -- jobs whose cancel was requested
    cancel_reasons text[] not null default '{}',     -- one for each of them
    primary key (lease_id, part),
    constraint lease_ids check (array_ndims(ids) = 1 and array_position(ids, null) is null),
    constraint lease_claimed_at check (isfinite(claimed_at)),
    constraint lease_counts check (failed between 0 and 65535 and recoveries between 0 and 65535),
    constraint lease_canceled check (cardinality(canceled) = cardinality(cancel_reasons)
        and coalesce(array_ndims(canceled), 1) = 1 and coalesce(array_ndims(cancel_reasons), 1) = 1
        and array_position(canceled, null) is null and array_position(cancel_reasons, null) is null)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_threshold = 2000000000);
create index lease_node on windlass.lease (node_id);

create sequence windlass.node_seq;
create table windlass.node (
    node_id bigint not null primary key default nextval('windlass.node_seq'),
    slot smallint not null,
    running integer not null default 0,
    started_at timestamptz not null default clock_timestamp(),
    heartbeat_at timestamptz not null default clock_timestamp(),
    info json not null,
    constraint node_heartbeat_at check (isfinite(heartbeat_at))
) with (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- When a handler was last served whose nodes are gone, or a queue from which workers outside take.
create table windlass.served (
    name text not null primary key,
    at timestamptz not null
);

-- Machine slots 0 to 1022. A slot that was given back stays unused for a while.
create table windlass.slot (
    slot smallint not null primary key,
    node_id bigint,
    free_at timestamptz not null default '-infinity',
    constraint slot_range check (slot between 0 and 1022)
);
insert into windlass.slot (slot) select generate_series(0, 1022);

-- How far service has come, so that SQL and other processes place new chunks where they belong.
create table windlass.line (
    queue text not null,
    rank smallint not null,
    served bigint not null,
    primary key (queue, rank),
    constraint line_served check (served between -4611686018427387904 and 4611686018427387904)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create table windlass.tenant_line (
    queue text not null,
    rank smallint not null,
    tenant_id uuid not null,
    next bigint not null,
    primary key (queue, rank, tenant_id),
    constraint tenant_line_next check (next between -4611686018427387904 and 4611686018427387904)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Idempotency keys (kind i, scope handler) and unique keys (kind u, scope empty). The key is kept as a hash where it is
-- long, because an index row has a limit and content keys hold whole payloads.
create table windlass.job_key (
    kind "char" not null,
    tenant_id uuid not null,
    scope text not null,
    key text not null,
    id bigint not null,
    until timestamptz,
    primary key (kind, tenant_id, scope, key)
) with (fillfactor = 80);
create index job_key_id on windlass.job_key (id);

create table windlass.expiry (
    at timestamptz not null,
    id bigint not null
);
create index expiry_at on windlass.expiry (at, id);

-- What happened to a job between its submit and where it is now. A plain successful job has none.
create table windlass.event (
    id bigint not null,
    seq bigint generated always as identity,
    at timestamptz not null,
    started_at timestamptz,
    node_id bigint,
    status smallint not null,
    attempt integer not null,
    failed integer not null,
    recoveries integer not null,
    error json,
    note text,
    constraint event_at check (isfinite(at)),
    constraint event_counts check (failed between 0 and 65535 and recoveries between 0 and 65535)
);
create index event_id on windlass.event (id, seq);

create table windlass.checkpoint (
    id bigint not null primary key,
    data json not null
) with (fillfactor = 70);

create table windlass.progress (
    id bigint not null primary key,
    sequence bigint not null,
    percent real not null,
    message text not null,
    updated_at timestamptz not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create table windlass.pause (
    target text not null primary key,
    by text not null,
    reason text not null,
    at timestamptz not null default clock_timestamp()
);

create table windlass.audit (
    id bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    tenant_id uuid,
    actor text not null,
    action text not null,
    target text not null,
    detail text
);
create index audit_tenant on windlass.audit (tenant_id, id);
create index audit_target on windlass.audit (target, id);
-- Successes by job. Only those of the engine: their target is the id of a job.
create index audit_succeeded on windlass.audit ((target::bigint)) where action = 'JOB_SUCCEEDED' and actor = 'windlass';

-- Ended jobs by tenant and status: how many there ever were, and how many of them are gone (past their time, or purged).
-- Writers append packed deltas; maintenance folds them. Nothing is counted when rows are removed: a job is gone at its
-- `purge_at`, and `windlass.gone_at` makes those of many jobs the same, so that `counter_end` has few rows.
create table windlass.counter (
    tenant_id uuid not null,
    status smallint not null,
    n bigint not null,
    gone bigint not null default 0,
    primary key (tenant_id, status),
    constraint counter_range check (n between -1000000000000000 and 1000000000000000
        and gone between -1000000000000000 and 1000000000000000)
) with (fillfactor = 70);
create table windlass.counter_delta (
    tenants uuid[] not null,
    statuses smallint[] not null,
    counts bigint[] not null,
    untils timestamptz[] not null default '{}',      -- when those are gone; null or missing: not by themselves
    constraint counter_delta_range check (1000000000000000 >= all (counts) and -1000000000000000 <= all (counts))
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_analyze_threshold = 2000000000);

create table windlass.counter_end (
    until timestamptz not null,
    tenant_id uuid not null,
    status smallint not null,
    n bigint not null,
    primary key (until, tenant_id, status),
    constraint counter_end_range check (n between -1000000000000000 and 1000000000000000)
) with (fillfactor = 70);
