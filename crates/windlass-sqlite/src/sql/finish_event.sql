-- Keep what happened to a job that goes on.
INSERT INTO windlass_event (job, at, status, attempt, failed, recoveries, node, started_at, error, note)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10);
