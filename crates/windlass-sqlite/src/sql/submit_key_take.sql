-- Give a key to job ?5; whoever had it before has been found to hold it no longer.
INSERT INTO windlass_job_key (kind, tenant, handler, key, job, until)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (kind, tenant, handler, key) DO UPDATE SET job = excluded.job, until = excluded.until;
