-- Cancel waiting jobs that have expired. Function windlass.expire, migration 6; expiry_at.
select windlass.expire($1)
