-- Every registered process, newest first.
select node_id, slot, info, running, started_at, heartbeat_at from windlass.node order by node_id desc
