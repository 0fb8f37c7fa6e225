-- Take back the jobs of lost nodes. Function windlass.recover, migration 6; lease_node.
select o_nodes, o_jobs from windlass.recover(make_interval(secs => $1), make_interval(secs => $2))
