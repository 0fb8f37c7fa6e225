-- How many jobs are in each status but running, in tenant ?1 or in all, at time ?2. Withdrawn jobs are still in their
-- chunks; ended ones whose time is over are still there until they are removed (windlass_outcome_by_purge).
SELECT status, total(jobs) FROM (
    SELECT 0 AS status, total(jobs) - (SELECT count(*) FROM windlass_withdrawn WHERE ?1 IS NULL OR tenant = ?1) AS jobs
    FROM windlass_ready WHERE ?1 IS NULL OR tenant = ?1
    UNION ALL
    SELECT kind, count(*) FROM windlass_scheduled WHERE ?1 IS NULL OR tenant = ?1 GROUP BY kind
    UNION ALL
    SELECT 3, count(*) FROM windlass_gated WHERE ?1 IS NULL OR tenant = ?1
    UNION ALL
    SELECT status, jobs - gone FROM windlass_counter WHERE ?1 IS NULL OR tenant = ?1
    UNION ALL
    SELECT o.status, -1 FROM windlass_outcome o
    WHERE o.purge_at <= ?2
      AND (?1 IS NULL OR EXISTS (SELECT 1 FROM windlass_job j WHERE j.id = o.job AND j.tenant = ?1)))
GROUP BY status;
