-- Jobs with where they are, for dashboards and object mappers. Nothing of the payload, the output or the text of an error.
-- With the rights of whoever asks: behind a wall it shows one tenant.
create or replace view windlass.job_status_v with (security_invoker = true) as
select j.id, j.tenant_id, j.handler, j.queue,
       case coalesce(o.status, s.kind, case when g.id is not null then 3 end, case when r.id is not null then 5 end, 0)
            when 0 then 'pending' when 1 then 'scheduled' when 2 then 'retrying' when 3 then 'blocked' when 5 then 'running'
            when 6 then 'succeeded' when 7 then 'canceled' when 8 then 'dead_lettered' end as status,
       j.priority,
       coalesce(o.attempt, s.failed + s.recoveries, g.failed + g.recoveries, r.failed + r.recoveries + 1,
                e.failed + e.recoveries, 0) as attempt,
       j.correlation_id, j.batch_id, j.created_at, coalesce(s.run_at, j.run_at) as run_at,
       coalesce(o.started_at, r.claimed_at, e.started_at) as started_at, o.finished_at,
       coalesce(o.finished_at, r.claimed_at, e.at, j.created_at) as updated_at,
       p.percent as progress, p.message as progress_message,
       windlass.json_text(coalesce(o.error, e.error), 'code') as error_code,
       windlass.json_text(coalesce(o.error, e.error), 'kind') as error_kind,
       coalesce(o.reason, g.gate) as reason
from windlass.job j
left join lateral (select * from windlass.outcome where outcome.id = j.id offset 0) o on true
left join lateral (select * from windlass.scheduled where scheduled.id = j.id offset 0) s on true
left join lateral (select * from windlass.gated where gated.id = j.id offset 0) g on true
-- Asked for only where nothing else tells where the job is.
left join lateral (select * from windlass.running(array[j.id])
                   where o.id is null and s.id is null and g.id is null offset 0) r on true
left join lateral (select * from windlass.progress where progress.id = j.id offset 0) p on true
left join lateral (select * from windlass.event where event.id = j.id order by event.id, seq desc limit 1) e on true
where o.purge_at is null or o.purge_at > clock_timestamp();
