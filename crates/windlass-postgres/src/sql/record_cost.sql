-- Record a cost of job $2 of tenant $1 (null for all). Function windlass.record_cost, migration 12.
select windlass.record_cost($1, $2, $3, $4, $5)
