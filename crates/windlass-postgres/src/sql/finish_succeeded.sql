-- End plain successes, by parts of leases. Function windlass.finish_succeeded, migration 4; lease_pkey.
select windlass.finish_succeeded($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
