-- Count jobs by status for the present buckets. Function windlass.sample_depth, migration 13.
select windlass.sample_depth($1)
