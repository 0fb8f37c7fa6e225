-- Remove buckets whose time is over. Function windlass.clean_activity, migration 13; activity_at.
select windlass.clean_activity($1, $2, $3)
