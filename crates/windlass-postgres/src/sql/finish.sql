-- End attempts in any way. Function windlass.finish, migration 4; lease_pkey, and the jobs' primary key.
select o_n, o_status from windlass.finish($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
