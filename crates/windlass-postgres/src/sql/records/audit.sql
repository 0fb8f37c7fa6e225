-- Add an entry to the audit log.
insert into windlass.audit (tenant_id, actor, action, target, detail) values ($1, $2, $3, $4, $5)
