-- What tenants may use. The default policy, for every tenant without its own, has an empty key.
CREATE TABLE windlass_quota (
    tenant BLOB PRIMARY KEY,
    policy TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What is counted for tenants whose submits are limited; made when the first of them comes.
CREATE TABLE windlass_tenant_use (
    tenant    BLOB PRIMARY KEY,
    -- All jobs of the tenant that were ever stored: without those that have ended, the unfinished ones.
    submitted INTEGER NOT NULL,
    -- Payload bytes of unfinished jobs, at most: an end takes nothing off until they are counted anew.
    bytes     INTEGER NOT NULL,
    tokens    REAL    NOT NULL,
    filled_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
