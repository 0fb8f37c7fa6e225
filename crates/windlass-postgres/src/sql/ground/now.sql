-- The store's time.
select clock_timestamp() as now
