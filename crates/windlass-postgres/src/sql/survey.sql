-- What there is to do: pauses, ready jobs in queues $2, jobs due since $3, lost nodes (lease $1 seconds) or nodes that a
-- clock which was set back has left in the future, expired jobs and closed gates; the version of the quotas;
-- whether somebody wants status events, and whether there are webhooks.
-- ready_claim, scheduled_due, expiry_at, gated_id; nodes and pauses are few.
-- The time is read once: compared with the clock itself, every scheduled job would be looked at.
select array(select p.target from windlass.pause p order by p.target) as targets,
       array(select p.by from windlass.pause p order by p.target) as bys,
       array(select p.reason from windlass.pause p order by p.target) as reasons,
       array(select p.at from windlass.pause p order by p.target) as ats,
       exists (select 1 from unnest($2) q(name)
               cross join lateral (select 1 from windlass.ready r where r.queue = q.name
                                   order by r.queue, r.rank, r.position limit 1) r) as ready,
       exists (select 1 from windlass.scheduled s where s.run_at between $3 and (select clock_timestamp())) as due,
       exists (select 1 from windlass.node n where n.heartbeat_at < clock_timestamp() - make_interval(secs => $1)
                    or n.heartbeat_at > clock_timestamp() + interval '1 second') as lost,
       exists (select 1 from windlass.expiry e where e.at <= (select clock_timestamp()))
           or exists (select 1 from windlass.gated g order by g.id limit 1) as untidy,
       (select v.n from windlass.quota_version v) as quotas,
       exists (select 1 from windlass.feed_reader r where r.until > clock_timestamp()) as feed,
       exists (select 1 from windlass.webhook w where not w.paused) as webhooks
