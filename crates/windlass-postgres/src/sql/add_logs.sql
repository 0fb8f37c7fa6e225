-- Keep log lines of held jobs. Function windlass.add_logs, migration 12; lease_pkey, job_log_pkey.
select windlass.add_logs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
