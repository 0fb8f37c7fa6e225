-- Cancel job $2 of tenant $1 (null for all). Function windlass.cancel, migration 5.
select windlass.cancel($1, $2, $3, $4)
