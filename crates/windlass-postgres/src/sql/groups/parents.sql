-- How jobs and batches $1 stand: the status of an ended one, -1 one that has not ended, -2 one that is not there.
select x.id,
       coalesce(o.status, case when j.id is not null then -1 when b.id is null then -2 when b.completed_at is null then -1
                               when b.succeeded = b.total then 6 else 8 end)::smallint
from unnest($1::bigint[]) x(id)
left join lateral (select status from windlass.outcome where outcome.id = x.id offset 0) o on true
left join lateral (select id from windlass.job where job.id = x.id offset 0) j on true
left join windlass.batch b on b.id = x.id
