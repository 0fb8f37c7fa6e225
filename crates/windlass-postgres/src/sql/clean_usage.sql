-- Forget costs that are too old. Function windlass.clean_usage, migration 12; usage_event_at, usage_pkey.
select windlass.clean_usage($1, $2, $3)
