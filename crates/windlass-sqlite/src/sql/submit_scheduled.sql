-- Let a job wait until it is due.
INSERT INTO windlass_scheduled (job, due, kind, tenant, queue, priority, failed, recoveries, resumed)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9);
