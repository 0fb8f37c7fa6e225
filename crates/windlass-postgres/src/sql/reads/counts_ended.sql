-- Ended jobs that can be seen, of tenant $1 (null for all), by status. windlass.ended, reads/ended.sql; counter_pkey,
-- counter_end_pkey; deltas and ends are folded every few seconds.
select status, sum(n)::bigint as n from windlass.ended($1) group by status
