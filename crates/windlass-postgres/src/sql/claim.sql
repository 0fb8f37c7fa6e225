-- Take ready jobs under one new lease. Function windlass.claim, migration 3.
-- Chunks are served by ready_claim, jobs by the primary key of their week.
select * from windlass.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
