-- Remove buckets of ?1 seconds from before ?2, at most ?3. Served by windlass_activity_by_time.
DELETE FROM windlass_activity WHERE (resolution, tenant, at, handler) IN (
    SELECT resolution, tenant, at, handler FROM windlass_activity WHERE resolution = ?1 AND at < ?2 ORDER BY at LIMIT ?3
);
