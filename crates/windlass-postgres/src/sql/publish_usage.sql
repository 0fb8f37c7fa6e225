-- Give a sequence to costs that have none. Function windlass.publish_usage, migration 12; usage_event_new.
select windlass.publish_usage($1)
