-- Store jobs of any kind, given as JSON. Function windlass.submit_jobs, migration 2.
-- Keys are served by job_key_pkey and key_holder_pkey.
select id, duplicate from windlass.submit_jobs($1)
