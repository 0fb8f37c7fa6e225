-- Remove ended jobs whose time is over among the next $2 outcomes. Function windlass.clean, migration 6.
select o_removed, o_last, o_scanned from windlass.clean($1, $2, $3)
