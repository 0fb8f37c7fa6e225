-- Batches of tenant ?1 (null for all) with ids ?2 (null for any), before ?3 if given, newest first, at most ?4.
SELECT id, tenant, name, key, callback, parts, total, succeeded, canceled, dead, created_at, sealed_at, completed_at,
       callback_job
FROM windlass_batch
WHERE (?1 IS NULL OR tenant = ?1) AND (?2 IS NULL OR id IN (SELECT value FROM json_each(?2))) AND (?3 IS NULL OR id < ?3)
ORDER BY id DESC LIMIT ?4;
