-- Make due jobs ready. Function windlass.promote, migration 6; scheduled_due from the hint on.
select o_jobs, o_next_us, o_last from windlass.promote($1, $2)
