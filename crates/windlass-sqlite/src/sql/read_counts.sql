-- How many jobs are in each status but running, in tenant ?1 or in all. Withdrawn jobs are still in their chunks.
SELECT 0, total(jobs) - (SELECT count(*) FROM windlass_withdrawn WHERE ?1 IS NULL OR tenant = ?1)
FROM windlass_ready WHERE ?1 IS NULL OR tenant = ?1
UNION ALL
SELECT kind, count(*) FROM windlass_scheduled WHERE ?1 IS NULL OR tenant = ?1 GROUP BY kind
UNION ALL
SELECT 3, count(*) FROM windlass_gated WHERE ?1 IS NULL OR tenant = ?1
UNION ALL
SELECT status, total(jobs) FROM windlass_counter WHERE ?1 IS NULL OR tenant = ?1 GROUP BY status;
