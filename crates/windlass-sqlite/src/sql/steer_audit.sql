-- Add a line to the audit log.
INSERT INTO windlass_audit (at, actor, tenant, action, target, detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6);
