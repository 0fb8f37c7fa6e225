-- Batches of tenant $1 (null for all) with ids $2 (null for any), before $3 if given, newest first, at most $4: with exact
-- counts, and how many changes of them are not folded.
select b.id, b.tenant_id, b.name, b.key, b.callback, p.parts, coalesce(b.total, p.jobs), b.succeeded + d.succeeded,
       b.canceled + d.canceled, b.dead + d.dead, b.created_at, b.sealed_at, b.completed_at, b.callback_job, d.deltas
from (select * from windlass.batch b
      where ($1::uuid is null or b.tenant_id = $1) and ($2::bigint[] is null or b.id = any ($2))
        and ($3::bigint is null or b.id < $3)
      order by b.id desc limit $4) b
cross join lateral (select count(*) as parts, coalesce(sum(p.jobs), 0)::bigint as jobs
                    from windlass.batch_part p where p.batch_id = b.id) p
cross join lateral (select count(*) as deltas, coalesce(sum(d.succeeded), 0)::bigint as succeeded,
                           coalesce(sum(d.canceled), 0)::bigint as canceled, coalesce(sum(d.dead), 0)::bigint as dead
                    from windlass.batch_delta d where d.batch_id = b.id) d
order by b.id desc
