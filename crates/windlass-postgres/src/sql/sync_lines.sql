-- Publish how far service has come, and read what others published. Function windlass.sync_lines, migration 3.
select o_queue, o_rank, o_tenant, o_at from windlass.sync_lines($1, $2, $3, $4, $5, $6, $7)
