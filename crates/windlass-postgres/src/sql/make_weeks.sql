-- Make the partitions of this week and the next ones. Function windlass.make_weeks, migration 1.
select windlass.make_weeks($1)
