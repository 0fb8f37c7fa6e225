-- Tables of the queue with many dead rows.
select t.relname::text, t.n_dead_tup, t.n_live_tup from pg_stat_user_tables t
where t.schemaname = 'windlass' and t.n_dead_tup >= $1 order by t.n_dead_tup desc limit 5
