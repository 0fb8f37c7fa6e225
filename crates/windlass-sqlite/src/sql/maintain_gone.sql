-- Count ended jobs ?1 (a JSON array) that are about to be removed.
INSERT INTO windlass_counter (tenant, status, jobs, gone)
SELECT j.tenant, o.status, 0, count(*)
FROM json_each(?1) x JOIN windlass_outcome o ON o.job = x.value JOIN windlass_job j ON j.id = o.job
WHERE true GROUP BY j.tenant, o.status
ON CONFLICT (tenant, status) DO UPDATE SET gone = min(4611686018427387904, gone + excluded.gone);
