-- The first $4 status events after $1 or in the gaps from $2 to $3, with their jobs; feed_pkey, the primary keys of job and
-- outcome by week, and event_id for what went wrong.
select f.sequence, f.id, f.status, coalesce(f.attempt, o.attempt, 0) as attempt, f.at, j.tenant_id, j.handler,
       coalesce(windlass.json_text(j.spec, 'sealed') = 'true', false) as sealed,
       case when f.status in (2, 8) then coalesce(o.error, e.error) end as error
from (select * from (select * from windlass.feed a where a.sequence > $1 order by a.sequence limit $4) a
      union
      select b.* from unnest($2, $3) g(first, last)
      cross join lateral (select * from windlass.feed c where c.sequence between g.first and g.last
                          order by c.sequence limit $4) b
      order by sequence limit $4) f
left join lateral (select tenant_id, handler, spec from windlass.job where job.id = f.id offset 0) j on true
left join lateral (select attempt, error from windlass.outcome where outcome.id = f.id and outcome.status = f.status
                     and (f.attempt is null or outcome.attempt = f.attempt) offset 0) o on true
left join lateral (select error from windlass.event where event.id = f.id and event.status = f.status
                     and event.attempt = f.attempt and f.status in (2, 8) order by event.id, seq desc limit 1) e on true
order by f.sequence
