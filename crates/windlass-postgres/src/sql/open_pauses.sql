-- Make jobs ready that a pause parked which is over. Function windlass.open_pauses, migration 6; gated_gate.
select windlass.open_pauses($1)
