-- Stores a schedule, new or changed.
INSERT OR REPLACE INTO windlass_schedule
    (tenant, name, id, version, spec, input, sealed, paused, next_at, last_at, created_at, changed_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
