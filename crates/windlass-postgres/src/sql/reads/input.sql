-- The input of job $1 of tenant $2 (null for all). Primary keys of job and outcome by week.
select j.payload from windlass.job j
left join windlass.outcome o on o.id = j.id
where j.id = $1 and ($2::uuid is null or j.tenant_id = $2) and (o.purge_at is null or o.purge_at > clock_timestamp())
