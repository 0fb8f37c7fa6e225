-- The first job behind gate ?1 of tenant ?2. Served by windlass_gated_by_gate.
SELECT job, queue, priority, due, failed, recoveries, resumed
FROM windlass_gated WHERE gate = ?1 AND tenant = ?2 ORDER BY arrival, job LIMIT 1;
