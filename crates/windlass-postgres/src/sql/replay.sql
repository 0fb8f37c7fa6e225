-- Put a dead letter back to work in place. Function windlass.replay, migration 5.
select windlass.replay($1, $2, $3)
