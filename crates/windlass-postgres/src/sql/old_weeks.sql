-- The weeks that ended so many seconds ago or more. Function windlass.old_weeks, migration 6.
select to_char(day, 'YYYYMMDD') as day from windlass.old_weeks(clock_timestamp() - make_interval(secs => $1)) day
