-- Batches. Their counts change in the transaction that ends one of their jobs: there is one writer, so no row is hot.
CREATE TABLE windlass_batch (
    id           INTEGER PRIMARY KEY,
    tenant       BLOB    NOT NULL,
    name         TEXT    NOT NULL,
    key          TEXT,
    callback     TEXT,
    parts        INTEGER NOT NULL DEFAULT 0,
    total        INTEGER NOT NULL DEFAULT 0,
    succeeded    INTEGER NOT NULL DEFAULT 0,
    canceled     INTEGER NOT NULL DEFAULT 0,
    dead         INTEGER NOT NULL DEFAULT 0,
    created_at   INTEGER NOT NULL,
    sealed_at    INTEGER,
    completed_at INTEGER,
    callback_job INTEGER
) STRICT;
CREATE UNIQUE INDEX windlass_batch_key ON windlass_batch (tenant, key) WHERE key IS NOT NULL;
CREATE INDEX windlass_batch_sealed ON windlass_batch (id) WHERE sealed_at IS NOT NULL AND completed_at IS NULL;
CREATE INDEX windlass_batch_completed ON windlass_batch (completed_at) WHERE completed_at IS NOT NULL;

-- A part is added once.
CREATE TABLE windlass_batch_part (
    batch INTEGER NOT NULL,
    part  INTEGER NOT NULL,
    jobs  INTEGER NOT NULL,
    PRIMARY KEY (batch, part)
) STRICT, WITHOUT ROWID;

-- Who waits or waited for whom: the parent is a job or a batch. Goes with the child.
CREATE TABLE windlass_edge (
    parent INTEGER NOT NULL,
    child  INTEGER NOT NULL,
    PRIMARY KEY (parent, child)
) STRICT, WITHOUT ROWID;
CREATE INDEX windlass_edge_child ON windlass_edge (child, parent);
