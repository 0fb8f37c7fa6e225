-- Schedules of tenant ?1 (null for all) with name ?2 (null for any), after tenant ?3 and name ?4 if given, at most ?5.
SELECT tenant, name, id, version, spec, input, sealed, paused, next_at, last_at, created_at, changed_at
FROM windlass_schedule
WHERE (?1 IS NULL OR tenant = ?1) AND (?2 IS NULL OR name = ?2) AND (?3 IS NULL OR (tenant, name) > (?3, ?4))
ORDER BY tenant, name LIMIT ?5
