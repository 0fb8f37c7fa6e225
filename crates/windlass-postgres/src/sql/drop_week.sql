-- Drop an old week; its survivors move to the default partition. Function windlass.drop_week, migration 6.
select windlass.drop_week(to_date($1, 'YYYYMMDD'), $2)
