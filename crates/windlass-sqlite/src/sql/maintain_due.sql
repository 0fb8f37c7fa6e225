-- Jobs due at ?1, longest due first. Served by windlass_scheduled_by_due.
SELECT job, tenant, queue, priority, failed, recoveries, resumed
FROM windlass_scheduled WHERE due <= ?1 ORDER BY due, job LIMIT ?2;
