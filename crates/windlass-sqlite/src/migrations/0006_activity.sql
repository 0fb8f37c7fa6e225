-- The past, for charts: counts that add up, in buckets of several lengths (resolution, in seconds). `sums` holds the numbers
-- of `Sums::values`, little-endian 64-bit. An empty tenant stands for all tenants together.
CREATE TABLE windlass_activity (
    resolution INTEGER NOT NULL,
    tenant     BLOB    NOT NULL,
    at         INTEGER NOT NULL,
    handler    TEXT    NOT NULL,
    sums       BLOB    NOT NULL,
    PRIMARY KEY (resolution, tenant, at, handler)
) STRICT, WITHOUT ROWID;
CREATE INDEX windlass_activity_by_time ON windlass_activity (resolution, at);

-- How many jobs were in each status, all tenants together; `counts` as above, by the code of the status.
CREATE TABLE windlass_depth (
    resolution INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    counts     BLOB    NOT NULL,
    PRIMARY KEY (resolution, at)
) STRICT, WITHOUT ROWID;
