-- What there is to do: pauses, ready jobs in queues $2, jobs due since $3, nodes that were silent for a tenth of the lease
-- ($1 seconds) or that a clock which was set back has left in the future, expired jobs and closed gates; the version of the quotas;
-- whether somebody wants status events, whether there are webhooks, and in how many seconds a schedule is due; whether jobs
-- wait for others, and whether counts of batches have changed or one may be complete.
-- ready_claim, scheduled_due, schedule_due, expiry_at, gated_id, gated_gate, batch_sealed; nodes and pauses are few.
-- The time is read once: compared with the clock itself, every scheduled job would be looked at.
select array(select p.target from windlass.pause p order by p.target) as targets,
       array(select p.by from windlass.pause p order by p.target) as bys,
       array(select p.reason from windlass.pause p order by p.target) as reasons,
       array(select p.at from windlass.pause p order by p.target) as ats,
       exists (select 1 from unnest($2) q(name)
               cross join lateral (select 1 from windlass.ready r where r.queue = q.name
                                   order by r.queue, r.rank, r.position limit 1) r) as ready,
       exists (select 1 from windlass.scheduled s where s.run_at between $3 and (select clock_timestamp())) as due,
       coalesce(silent.nodes, '{}'), coalesce(silent.beats, '{}'),
       exists (select 1 from windlass.expiry e where e.at <= (select clock_timestamp()))
           or exists (select 1 from windlass.gated g order by g.id limit 1) as untidy,
       (select v.n from windlass.quota_version v) as quotas,
       exists (select 1 from windlass.feed_reader r where r.until > clock_timestamp()) as feed,
       exists (select 1 from windlass.webhook w where not w.paused) as webhooks,
       (select extract(epoch from s.next_at - clock_timestamp())::float8 from windlass.schedule s
        where not s.paused and s.next_at is not null order by s.next_at, s.id limit 1) as schedule_in,
       exists (select 1 from windlass.gated g where g.gate = 'parents:') as dependents,
       exists (select 1 from windlass.batch_delta d)
           or exists (select 1 from windlass.batch b where b.sealed_at is not null and b.completed_at is null
                      and b.succeeded + b.canceled + b.dead >= b.total) as batches
from (select array_agg(n.node_id) as nodes, array_agg(n.heartbeat_at) as beats from windlass.node n
      where n.heartbeat_at < clock_timestamp() - make_interval(secs => $1 / 10)
         or n.heartbeat_at > clock_timestamp() + interval '1 second') silent
