-- Jobs that wait for one of ?1, by id, at most ?2.
SELECT DISTINCT j.id, j.tenant, j.handler, j.spec
FROM windlass_edge e
JOIN windlass_gated g ON g.job = e.child AND g.gate = 'parents:'
JOIN windlass_job j ON j.id = e.child
WHERE e.parent IN (SELECT value FROM json_each(?1))
ORDER BY j.id LIMIT ?2;
