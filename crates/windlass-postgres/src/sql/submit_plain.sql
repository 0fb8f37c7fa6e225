-- Store plain jobs: job rows, and ready chunks, schedule rows or one lease row. Insert only.
-- Function windlass.submit_plain, migration 2; it reads `line` by its primary key.
select windlass.submit_plain($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
