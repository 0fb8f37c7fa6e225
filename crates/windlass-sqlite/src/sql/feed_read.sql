-- The first ?3 status events after ?1 or in the gaps of the list ?2, with their jobs; the primary keys, and
-- windlass_event_by_job for what went wrong.
SELECT f.sequence, f.job, f.status, f.attempt, f.at, j.tenant, j.handler, j.spec,
       CASE WHEN f.status IN (2, 8) THEN coalesce(
           (SELECT o.error FROM windlass_outcome o WHERE o.job = f.job AND o.status = f.status AND o.attempt = f.attempt),
           (SELECT e.error FROM windlass_event e
            WHERE e.job = f.job AND e.status = f.status AND e.attempt = f.attempt ORDER BY e.n DESC LIMIT 1)) END
FROM (SELECT * FROM (SELECT * FROM windlass_feed WHERE sequence > ?1 ORDER BY sequence LIMIT ?3)
      UNION
      SELECT g.* FROM json_each(?2) gap
      JOIN windlass_feed g ON g.sequence BETWEEN gap.value ->> 0 AND gap.value ->> 1) f
LEFT JOIN windlass_job j ON j.id = f.job
ORDER BY f.sequence LIMIT ?3
