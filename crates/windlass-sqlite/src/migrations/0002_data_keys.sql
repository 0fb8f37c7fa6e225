-- The data keys that seal what jobs carry, wrapped by keys that are never here. A destroyed one has no `wrapped`; its row
-- stays, so that no version is ever used again.
CREATE TABLE windlass_data_key (
    tenant     BLOB    NOT NULL,
    version    INTEGER NOT NULL,
    kek        TEXT    NOT NULL,
    wrapped    BLOB,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, version)
) STRICT, WITHOUT ROWID;
