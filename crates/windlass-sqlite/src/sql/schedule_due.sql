-- The schedules that are due at ?1, the longest first, at most ?2.
SELECT tenant, name, id, version, spec, input, sealed, paused, next_at, last_at, created_at, changed_at
FROM windlass_schedule
WHERE NOT paused AND next_at IS NOT NULL AND next_at <= ?1
ORDER BY next_at, id LIMIT ?2
