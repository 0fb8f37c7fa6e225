-- Give ordering keys of ended jobs to the next ones. Function windlass.pass_on_keys, migration 4; gated_gate.
select windlass.pass_on_keys($1, $2)
