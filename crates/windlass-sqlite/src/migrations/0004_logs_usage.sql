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
