-- What starts jobs again and again. `next_at` is null when it never fires again.
CREATE TABLE windlass_schedule (
    tenant     BLOB    NOT NULL,
    name       TEXT    NOT NULL,
    id         INTEGER NOT NULL,
    version    INTEGER NOT NULL,
    spec       TEXT    NOT NULL,
    input      TEXT    NOT NULL,
    sealed     INTEGER NOT NULL,
    paused     INTEGER NOT NULL,
    next_at    INTEGER,
    last_at    INTEGER,
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX windlass_schedule_due ON windlass_schedule (next_at, id) WHERE NOT paused AND next_at IS NOT NULL;
