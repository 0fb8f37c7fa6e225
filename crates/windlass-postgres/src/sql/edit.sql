-- Change waiting job $2 of tenant $1 (null for all). Function windlass.edit, migration 12.
select o_code, o_gate, o_queue from windlass.edit($1, $2, $3, $4, $5, $6, $7, $8, $9)
