-- Let a job wait behind a gate.
INSERT INTO windlass_gated (job, gate, tenant, queue, priority, due, failed, recoveries, resumed)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9);
