-- Give a process an identity and a machine slot. Function windlass.register, migration 6.
select o_node, o_slot, o_now from windlass.register($1, make_interval(secs => $2))
