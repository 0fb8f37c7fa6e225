-- The first shape of the store. All names begin with `windlass_`, because the application's own tables live in the same
-- file. Times are microseconds since 1970 UTC, tenants 16-byte UUIDs, priorities as in the API (higher first).

-- One row per job, written once and never changed.
CREATE TABLE windlass_job (
    -- The next process counts its ids on from the largest one.
    id             INTEGER PRIMARY KEY CHECK (id < 4611686018427387904),
    tenant         BLOB    NOT NULL,
    handler        TEXT    NOT NULL,
    queue          TEXT    NOT NULL,
    priority       INTEGER NOT NULL,
    created_at     INTEGER NOT NULL,
    -- The status it was stored with: the first line of its history.
    born           INTEGER NOT NULL,
    -- When it is due, if that lay ahead at the submit.
    run_at         INTEGER,
    ordering_key   TEXT,
    batch          INTEGER,
    correlation_id TEXT,
    tags           TEXT,
    spec           TEXT,
    payload        TEXT    NOT NULL
) STRICT;
CREATE INDEX windlass_job_by_tenant ON windlass_job (tenant);
CREATE INDEX windlass_job_by_batch ON windlass_job (batch) WHERE batch IS NOT NULL;
CREATE INDEX windlass_job_by_correlation ON windlass_job (correlation_id) WHERE correlation_id IS NOT NULL;

CREATE TABLE windlass_job_tag (
    tag TEXT    NOT NULL,
    job INTEGER NOT NULL,
    PRIMARY KEY (tag, job)
) STRICT, WITHOUT ROWID;
CREATE INDEX windlass_job_tag_by_job ON windlass_job_tag (job);

-- Keys that only one job may have: idempotency keys (kind 0, per tenant and handler) and unique keys (kind 1, per
-- tenant, with an empty handler). `until` is set for unique keys that hold for a time whatever becomes of the job.
CREATE TABLE windlass_job_key (
    n       INTEGER PRIMARY KEY,
    kind    INTEGER NOT NULL,
    tenant  BLOB    NOT NULL,
    handler TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    job     INTEGER NOT NULL,
    until   INTEGER,
    UNIQUE (kind, tenant, handler, key)
) STRICT;
CREATE INDEX windlass_job_key_by_job ON windlass_job_key (job);
CREATE INDEX windlass_job_key_by_until ON windlass_job_key (until) WHERE until IS NOT NULL;

-- Which unfinished job has an ordering key.
CREATE TABLE windlass_key_holder (
    tenant BLOB    NOT NULL,
    key    TEXT    NOT NULL,
    job    INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;

-- Ready jobs, packed: `ids` holds `jobs` little-endian 64-bit ids. `rank` is the priority negated, so that the index
-- runs from the most urgent on. `resumed` tells that they ran before and may have a checkpoint.
CREATE TABLE windlass_ready (
    n          INTEGER PRIMARY KEY,
    queue      TEXT    NOT NULL,
    rank       INTEGER NOT NULL,
    -- Others are placed after it, so what is added to it must fit.
    position   INTEGER NOT NULL CHECK (position BETWEEN -4611686018427387904 AND 4611686018427387904),
    tenant     BLOB    NOT NULL,
    jobs       INTEGER NOT NULL,
    failed     INTEGER NOT NULL,
    recoveries INTEGER NOT NULL,
    resumed    INTEGER NOT NULL,
    ready_at   INTEGER NOT NULL,
    ids        BLOB    NOT NULL
) STRICT;
-- Tenant and size ride along so that counting reads no chunk.
CREATE INDEX windlass_ready_in_line ON windlass_ready (queue, rank, position, n, tenant, jobs);

-- Ready jobs that ended while they waited. Their ids are still in a chunk; the claim that meets them drops both.
CREATE TABLE windlass_withdrawn (
    job    INTEGER PRIMARY KEY,
    tenant BLOB NOT NULL
) STRICT;

-- Jobs that wait for a time. `kind` is the code of their status: scheduled or retrying.
CREATE TABLE windlass_scheduled (
    job        INTEGER PRIMARY KEY,
    due        INTEGER NOT NULL,
    kind       INTEGER NOT NULL,
    tenant     BLOB    NOT NULL,
    queue      TEXT    NOT NULL,
    priority   INTEGER NOT NULL,
    failed     INTEGER NOT NULL,
    recoveries INTEGER NOT NULL,
    resumed    INTEGER NOT NULL
) STRICT;
CREATE INDEX windlass_scheduled_by_due ON windlass_scheduled (due, job);

-- Jobs that wait for something other than time. `due` is set where their start also lies ahead.
-- `arrival` is when the job was stored: ids of different machines do not tell who came first within a millisecond.
CREATE TABLE windlass_gated (
    job        INTEGER PRIMARY KEY,
    arrival    INTEGER NOT NULL,
    gate       TEXT    NOT NULL,
    tenant     BLOB    NOT NULL,
    queue      TEXT    NOT NULL,
    priority   INTEGER NOT NULL,
    due        INTEGER,
    failed     INTEGER NOT NULL,
    recoveries INTEGER NOT NULL,
    resumed    INTEGER NOT NULL
) STRICT;
CREATE INDEX windlass_gated_by_gate ON windlass_gated (gate, tenant, arrival, job);

-- One row per claimed batch. `jobs` holds 12 bytes for each job still held: its id, failures and recoveries.
CREATE TABLE windlass_lease (
    lease      INTEGER PRIMARY KEY,
    node       INTEGER NOT NULL,
    claimed_at INTEGER NOT NULL,
    jobs       BLOB    NOT NULL
) STRICT;

-- Cancels of running jobs that their node has not carried out yet.
CREATE TABLE windlass_cancel (
    job    INTEGER PRIMARY KEY,
    lease  INTEGER NOT NULL,
    reason TEXT    NOT NULL
) STRICT;
CREATE INDEX windlass_cancel_by_lease ON windlass_cancel (lease);

-- One row per ended job. Without `purge_at` it is kept until someone replays or purges it.
CREATE TABLE windlass_outcome (
    job        INTEGER PRIMARY KEY,
    status     INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    purge_at   INTEGER,
    attempt    INTEGER NOT NULL,
    failed     INTEGER NOT NULL,
    recoveries INTEGER NOT NULL,
    node       INTEGER,
    started_at INTEGER,
    reason     TEXT,
    note       TEXT,
    error      TEXT,
    output     TEXT
) STRICT;
CREATE INDEX windlass_outcome_by_purge ON windlass_outcome (purge_at) WHERE purge_at IS NOT NULL;

CREATE TABLE windlass_dead_letter (
    job         INTEGER PRIMARY KEY,
    replayed_by TEXT,
    replayed_at INTEGER,
    replayed_as INTEGER
) STRICT;

-- What happened to a job between its submit and its end; a job that succeeds at once has none. `failed` and
-- `recoveries` are the counts from then on.
CREATE TABLE windlass_event (
    n          INTEGER PRIMARY KEY,
    job        INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    status     INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    failed     INTEGER NOT NULL,
    recoveries INTEGER NOT NULL,
    node       INTEGER,
    started_at INTEGER,
    error      TEXT,
    note       TEXT
) STRICT;
CREATE INDEX windlass_event_by_job ON windlass_event (job, n);

CREATE TABLE windlass_checkpoint (
    job  INTEGER PRIMARY KEY,
    data TEXT NOT NULL
) STRICT;

CREATE TABLE windlass_progress (
    job        INTEGER PRIMARY KEY,
    sequence   INTEGER NOT NULL,
    percent    REAL    NOT NULL,
    message    TEXT    NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;

-- Jobs that are canceled if they have not started by a time.
CREATE TABLE windlass_expiry (
    job INTEGER PRIMARY KEY,
    at  INTEGER NOT NULL
) STRICT;
CREATE INDEX windlass_expiry_by_time ON windlass_expiry (at, job);

CREATE TABLE windlass_pause (
    target TEXT PRIMARY KEY,
    actor  TEXT    NOT NULL,
    reason TEXT    NOT NULL,
    at     INTEGER NOT NULL
) STRICT;

CREATE TABLE windlass_audit (
    n      INTEGER PRIMARY KEY,
    at     INTEGER NOT NULL,
    actor  TEXT    NOT NULL,
    tenant BLOB,
    action TEXT    NOT NULL,
    target TEXT    NOT NULL,
    detail TEXT
) STRICT;
CREATE INDEX windlass_audit_by_action ON windlass_audit (action, n);
CREATE INDEX windlass_audit_by_target ON windlass_audit (target, n);
-- Successes by job. Only those of the engine: their target is the id of a job.
CREATE INDEX windlass_audit_succeeded ON windlass_audit (CAST(target AS INTEGER))
    WHERE action = 'JOB_SUCCEEDED' AND actor = 'windlass';

-- How many jobs have ever ended in each status, and how many of those have been removed.
CREATE TABLE windlass_counter (
    tenant BLOB    NOT NULL,
    status INTEGER NOT NULL,
    jobs   INTEGER NOT NULL,
    gone   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, status)
) STRICT, WITHOUT ROWID;

-- AUTOINCREMENT, because the identity of a process must never come back.
CREATE TABLE windlass_node (
    node         INTEGER PRIMARY KEY AUTOINCREMENT CHECK (node < 4611686018427387904),
    slot         INTEGER NOT NULL UNIQUE,
    info         TEXT    NOT NULL,
    running      INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    heartbeat_at INTEGER NOT NULL
) STRICT;

-- When a handler was last served whose nodes are gone, or a queue from which workers outside take.
CREATE TABLE windlass_served (
    name TEXT PRIMARY KEY,
    at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Machine slots in quarantine.
CREATE TABLE windlass_slot (
    slot    INTEGER PRIMARY KEY,
    free_at INTEGER NOT NULL
) STRICT;

-- High-water marks that outlive the rows they came from: `job` is the largest id ever removed.
CREATE TABLE windlass_mark (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL CHECK (value < 4611686018427387904)
) STRICT;
