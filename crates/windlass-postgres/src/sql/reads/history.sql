-- What happened to job $1 between its submit and where it is now. event_id.
select at, started_at, node_id, status, attempt, error, note from windlass.event where id = $1 order by id, seq
