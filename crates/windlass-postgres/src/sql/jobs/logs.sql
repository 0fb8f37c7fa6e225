-- The log lines of job $1 of tenant $2 (null for all) after $3. job_log_pkey.
select l.sequence, l.at, l.attempt, l.level, l.message from windlass.job_log l
where l.id = $1 and l.sequence > $3
  and exists (select 1 from windlass.job j where j.id = $1 and ($2::uuid is null or j.tenant_id = $2))
  and not exists (select 1 from windlass.outcome o where o.id = $1 and o.purge_at <= clock_timestamp())
order by l.sequence
