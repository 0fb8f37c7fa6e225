-- End attempts that all succeeded. Function windlass.finish_succeeded, migration 4; lease_pkey.
select o_n, o_status from windlass.finish_succeeded($1, $2, $3, $4, $5, $6, $7, $8, $9)
