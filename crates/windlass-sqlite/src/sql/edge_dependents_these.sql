-- Those of ?1 that wait for others, by id, at most ?2.
SELECT j.id, j.tenant, j.handler, j.spec
FROM windlass_gated g JOIN windlass_job j ON j.id = g.job
WHERE g.gate = 'parents:' AND g.job IN (SELECT value FROM json_each(?1))
ORDER BY j.id LIMIT ?2;
