-- Put a chunk of ready jobs into its line.
INSERT INTO windlass_ready (queue, rank, position, tenant, jobs, failed, recoveries, resumed, ready_at, ids)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10);
