-- Jobs of tenant $1 (null for all) that succeeded, newest first, job $2 only and those before $4 only, if given.
-- Outcomes by their primary keys by week, backwards; entries of their own by audit_succeeded. A job that has both has them
-- from one transaction, with one time.
(select o.finished_at as at, j.tenant_id, o.id
 from (select * from windlass.outcome o where o.status = 6 and o.purge_at > clock_timestamp()
       and ($2::bigint is null or o.id = $2) and ($4::bigint is null or o.id < $4) order by o.id desc) o
 cross join lateral (select tenant_id from windlass.job where job.id = o.id offset 0) j
 where $1::uuid is null or j.tenant_id = $1
 order by o.id desc limit $3)
union
(select a.at, a.tenant_id, a.target::bigint
 from windlass.audit a
 where a.action = 'JOB_SUCCEEDED' and a.actor = 'windlass' and ($1::uuid is null or a.tenant_id = $1)
   and ($2::bigint is null or a.target::bigint = $2) and ($4::bigint is null or a.target::bigint < $4)
 order by a.target::bigint desc limit $3)
order by id desc limit $3
