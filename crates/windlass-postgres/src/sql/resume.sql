-- End a pause. Function windlass.resume, migration 5.
select windlass.resume($1, $2, $3)
