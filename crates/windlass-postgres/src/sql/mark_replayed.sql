-- Mark a dead letter as replayed by another job. Function windlass.mark_replayed, migration 5.
select windlass.mark_replayed($1, $2, $3, $4, $5)
