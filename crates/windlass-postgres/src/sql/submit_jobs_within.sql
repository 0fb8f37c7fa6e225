-- Store jobs of any kind, given as JSON, within the quotas; $2: exactly, by holding the tenants' rows.
-- Function windlass.submit_jobs_within, migration 9.
select id, duplicate from windlass.submit_jobs_within($1, $2)
