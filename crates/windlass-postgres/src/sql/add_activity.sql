-- Add what happened at $1 to the buckets of resolutions $2. Function windlass.add_activity, migration 13; activity_key.
select windlass.add_activity($1, $2, $3, $4, $5)
