-- Successes as audit entries, newest first: of tenant ?1 or all, job ?2 or all, visible at ?3, older than ?5 or all.
-- By the primary key, backwards.
SELECT o.at, j.tenant, o.job
FROM windlass_outcome o JOIN windlass_job j ON j.id = o.job
WHERE o.status = 6 AND (?1 IS NULL OR j.tenant = ?1) AND (?2 IS NULL OR o.job = ?2)
  AND (o.purge_at IS NULL OR o.purge_at > ?3) AND (?5 IS NULL OR o.job < ?5)
ORDER BY o.job DESC LIMIT ?4;
