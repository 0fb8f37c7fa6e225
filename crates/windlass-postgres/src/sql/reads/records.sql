-- Jobs $1 of tenant $2 (null for all) with where they are. Primary keys of job and outcome by week, unique indexes of
-- scheduled and gated, event_id; leases are few and read once, by windlass.running, reads/running.sql.
with r as materialized (select * from windlass.running($1))
select j.id, j.tenant_id, j.handler, j.queue, j.priority, j.created_at, j.run_at, j.batch_id, j.tags,
       j.correlation_id, j.ordering_key, j.spec,
       o.status, o.attempt, o.failed, o.recoveries, o.started_at, o.finished_at, o.node_id, o.output, o.error, o.reason,
       o.replayed_by, o.replayed_at, o.replayed_as,
       s.run_at as s_run_at, s.kind as s_kind, s.failed as s_failed, s.recoveries as s_recoveries,
       g.gate as g_gate, g.failed as g_failed, g.recoveries as g_recoveries,
       r.node_id as r_node_id, r.claimed_at as r_claimed_at, r.failed as r_failed, r.recoveries as r_recoveries,
       r.canceled as r_canceled,
       p.sequence as p_sequence, p.percent as p_percent, p.message as p_message, p.updated_at as p_updated_at,
       e.failed as e_failed, e.recoveries as e_recoveries, a.started_at as a_started_at, a.node_id as a_node_id,
       f.error as f_error, c.cents as c_cents, c.units as c_units
from (select distinct id from unnest($1) id) x
cross join lateral (select * from windlass.job where job.id = x.id offset 0) j
left join lateral (select * from windlass.outcome where outcome.id = x.id offset 0) o on true
left join lateral (select * from windlass.scheduled where scheduled.id = x.id offset 0) s on true
left join lateral (select * from windlass.gated where gated.id = x.id offset 0) g on true
left join r on r.id = x.id
left join lateral (select * from windlass.progress where progress.id = x.id offset 0) p on true
left join lateral (select * from windlass.job_cost where job_cost.id = x.id offset 0) c on true
left join lateral (select failed, recoveries from windlass.event where event.id = x.id
                   order by event.id, seq desc limit 1) e on true
left join lateral (select started_at, node_id from windlass.event where event.id = x.id and started_at is not null
                   order by event.id, seq desc limit 1) a on true
left join lateral (select error from windlass.event where event.id = x.id
                   and (error is not null or (attempt = 0 and note is not null))
                   order by event.id, seq desc limit 1) f on true
where ($2::uuid is null or j.tenant_id = $2) and (o.purge_at is null or o.purge_at > clock_timestamp())
