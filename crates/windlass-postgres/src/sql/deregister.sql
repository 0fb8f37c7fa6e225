-- End a node: its jobs are released, its slot is quarantined. Function windlass.deregister, migration 6; lease_node.
select windlass.deregister($1, make_interval(secs => $2))
