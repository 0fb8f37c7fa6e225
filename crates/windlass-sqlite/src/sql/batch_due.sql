-- Sealed batches that nobody has completed although all their jobs have ended: of ids ?1 (null for any), at most ?2.
-- windlass_batch_sealed.
SELECT id, tenant, name, key, callback, parts, total, succeeded, canceled, dead, created_at, sealed_at, completed_at,
       callback_job
FROM windlass_batch
WHERE sealed_at IS NOT NULL AND completed_at IS NULL AND total - succeeded - canceled - dead <= 0
  AND (?1 IS NULL OR id IN (SELECT value FROM json_each(?1)))
ORDER BY id LIMIT ?2;
