-- Successes as audit entries, newest first: of tenant ?1 or all, job ?2 or all, visible at ?3, older than ?5 or all.
-- Outcomes by the primary key, backwards; entries of their own by windlass_audit_succeeded. A job that has both has them
-- from one transaction, with one time.
SELECT at, tenant, job FROM (
    SELECT o.at, j.tenant, o.job
    FROM windlass_outcome o JOIN windlass_job j ON j.id = o.job
    WHERE o.status = 6 AND (?1 IS NULL OR j.tenant = ?1) AND (?2 IS NULL OR o.job = ?2)
      AND (o.purge_at IS NULL OR o.purge_at > ?3) AND (?5 IS NULL OR o.job < ?5)
    ORDER BY o.job DESC LIMIT ?4)
UNION
SELECT at, tenant, job FROM (
    SELECT at, tenant, CAST(target AS INTEGER) AS job
    FROM windlass_audit
    WHERE action = 'JOB_SUCCEEDED' AND actor = 'windlass' AND (?1 IS NULL OR tenant = ?1)
      AND (?2 IS NULL OR CAST(target AS INTEGER) = ?2) AND (?5 IS NULL OR CAST(target AS INTEGER) < ?5)
    ORDER BY CAST(target AS INTEGER) DESC LIMIT ?4)
ORDER BY job DESC LIMIT ?4;
