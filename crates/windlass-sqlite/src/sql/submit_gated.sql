-- Let a job wait behind a gate, in the order in which it was stored.
INSERT INTO windlass_gated (job, arrival, gate, tenant, queue, priority, due, failed, recoveries, resumed)
SELECT ?1, created_at, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 FROM windlass_job WHERE id = ?1;
