-- Keep the latest progress of held jobs. Function windlass.report_progress, migration 4; lease_pkey, progress_pkey.
select windlass.report_progress($1, $2, $3, $4, $5, $6, $7)
