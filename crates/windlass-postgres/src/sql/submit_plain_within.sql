-- Store plain jobs within the quotas $1 to $3 (tenants, jobs, bytes), or answer what is exceeded.
-- Function windlass.submit_plain_within, migration 9; tenant_use by its primary key.
select windlass.submit_plain_within($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)
