-- Remove an ended job now. Function windlass.purge, migration 5.
select windlass.purge($1, $2, $3)
