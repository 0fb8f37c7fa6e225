-- What callers from outside need: API keys, of which only hashes are kept, and values that all processes share.

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

CREATE TABLE windlass_setting (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
