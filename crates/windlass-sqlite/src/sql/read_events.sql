-- What happened to a job, oldest first.
SELECT at, status, attempt, failed, recoveries, node, started_at, error, note
FROM windlass_event WHERE job = ?1 ORDER BY n;
