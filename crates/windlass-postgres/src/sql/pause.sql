-- Pause a target; pausing twice keeps the first. Function windlass.pause, migration 5.
select windlass.pause($1, $2, $3, $4)
