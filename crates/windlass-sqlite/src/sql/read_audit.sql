-- The audit log, newest first: of tenant ?1 or all, action ?2 or all, target ?3 or all, older than ?5 or all.
SELECT at, actor, tenant, action, target, detail, n
FROM windlass_audit
WHERE (?1 IS NULL OR tenant = ?1) AND (?2 IS NULL OR action = ?2) AND (?3 IS NULL OR target = ?3)
  AND (?5 IS NULL OR n < ?5)
ORDER BY n DESC LIMIT ?4;
