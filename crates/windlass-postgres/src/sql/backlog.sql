-- What waits and runs by queue and handler, of tenant $1 (null for all). Function windlass.backlog, migration 13.
select o_queue, o_handler, o_waiting, o_since, o_running from windlass.backlog($1, $2, $3, $4)
