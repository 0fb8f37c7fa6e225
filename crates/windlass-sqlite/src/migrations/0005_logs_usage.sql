-- What jobs said while they ran, the newest lines only. `number` counts the lines of a lease, so that a repeated write adds
-- nothing; `sequence` counts those of the job.
CREATE TABLE windlass_job_log (
    job      INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    lease    INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    attempt  INTEGER NOT NULL,
    level    INTEGER NOT NULL,
    message  TEXT    NOT NULL,
    PRIMARY KEY (job, sequence)
) STRICT, WITHOUT ROWID;

-- What jobs have cost: sums by UTC day (as 2026-11-16), and each record for a while. AUTOINCREMENT, because a sequence that
-- a reader has seen must never come back.
CREATE TABLE windlass_usage (
    day     TEXT    NOT NULL,
    tenant  BLOB    NOT NULL,
    handler TEXT    NOT NULL,
    jobs    INTEGER NOT NULL,
    cents   INTEGER NOT NULL,
    units   INTEGER NOT NULL,
    PRIMARY KEY (day, tenant, handler)
) STRICT, WITHOUT ROWID;

CREATE TABLE windlass_usage_event (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT CHECK (sequence < 4611686018427387904),
    job      INTEGER NOT NULL,
    tenant   BLOB    NOT NULL,
    handler  TEXT    NOT NULL,
    cents    INTEGER NOT NULL,
    units    INTEGER NOT NULL,
    at       INTEGER NOT NULL
) STRICT;
CREATE INDEX windlass_usage_event_by_tenant ON windlass_usage_event (tenant, sequence);

-- What each job has cost so far, as long as the job is there.
CREATE TABLE windlass_job_cost (
    job   INTEGER PRIMARY KEY,
    cents INTEGER NOT NULL,
    units INTEGER NOT NULL
) STRICT;
