-- Keep how a job ended.
INSERT INTO windlass_outcome (job, status, at, purge_at, attempt, failed, recoveries, node, started_at, reason, note,
                              error, output)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13);
