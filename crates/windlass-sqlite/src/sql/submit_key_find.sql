-- Who has key ?4 of kind ?1 in tenant ?2 and handler ?3, and what decides whether the key still holds.
SELECT k.job, k.until, j.id IS NOT NULL AS exists_still, o.status, o.purge_at
FROM windlass_job_key k
LEFT JOIN windlass_job j ON j.id = k.job
LEFT JOIN windlass_outcome o ON o.job = k.job
WHERE k.kind = ?1 AND k.tenant = ?2 AND k.handler = ?3 AND k.key = ?4;
