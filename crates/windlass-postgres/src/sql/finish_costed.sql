-- End attempts in any way, some of which have cost something. Function windlass.finish_costed, migration 12.
select o_n, o_status from windlass.finish_costed($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
