-- How job $1 ended. Primary key of outcome by week.
select finished_at, started_at, node_id, status, attempt, error, note from windlass.outcome where id = $1
