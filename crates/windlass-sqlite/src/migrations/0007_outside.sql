-- What callers from outside need: API keys, of which only hashes are kept, values that all processes share, status events
-- while somebody reads them, and webhooks that are told of them.

-- Without a tenant, a key is for all of them; `home` is the tenant that its calls act for.
CREATE TABLE windlass_api_key (
    n            INTEGER PRIMARY KEY,
    id           TEXT    NOT NULL UNIQUE,
    tenant       BLOB,
    home         BLOB    NOT NULL,
    name         TEXT    NOT NULL,
    acts_as      TEXT    NOT NULL,
    rights       TEXT    NOT NULL,
    hash         BLOB    NOT NULL,
    created_at   INTEGER NOT NULL,
    created_by   TEXT    NOT NULL,
    expires_at   INTEGER,
    revoked_at   INTEGER,
    last_used_at INTEGER
) STRICT;
CREATE INDEX windlass_api_key_by_tenant ON windlass_api_key (tenant, n);

-- Values that all processes know for a time. Those that are kept for good are secrets, in a file of their own.
CREATE TABLE windlass_setting (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL,
    until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- AUTOINCREMENT, because a reader goes on after the last sequence it saw, also when that one is gone.
CREATE TABLE windlass_feed (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT CHECK (sequence < 4611686018427387904),
    job      INTEGER NOT NULL,
    status   INTEGER NOT NULL,
    attempt  INTEGER NOT NULL,
    at       INTEGER NOT NULL
) STRICT;

-- Until when status events are wanted; one row.
CREATE TABLE windlass_feed_reader (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    until INTEGER NOT NULL
) STRICT;

-- `secret` is a JSON string, or its envelope where `sealed`.
CREATE TABLE windlass_webhook (
    n          INTEGER PRIMARY KEY,
    id         TEXT    NOT NULL UNIQUE,
    tenant     BLOB    NOT NULL,
    url        TEXT    NOT NULL,
    events     TEXT    NOT NULL,
    handler    TEXT,
    secret     TEXT    NOT NULL,
    sealed     INTEGER NOT NULL,
    paused     INTEGER NOT NULL DEFAULT 0,
    -- Since when it is told of events: since it was made, or last resumed.
    active_since INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT    NOT NULL
) STRICT;
CREATE INDEX windlass_webhook_by_tenant ON windlass_webhook (tenant, n);

-- Who does what only one node may do at a time, and how far it has come. Without a node, it was let go; the row stays, so
-- that no epoch is ever used again.
CREATE TABLE windlass_holding (
    name     TEXT    NOT NULL PRIMARY KEY,
    node     INTEGER,
    epoch    INTEGER NOT NULL,
    until    INTEGER NOT NULL,
    position INTEGER
) STRICT, WITHOUT ROWID;
