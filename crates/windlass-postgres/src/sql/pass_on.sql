-- The same for jobs whose key the caller does not know. Function windlass.pass_on, migration 4.
select windlass.pass_on($1)
