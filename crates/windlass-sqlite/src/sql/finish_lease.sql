-- The lease ?1 if node ?2 has it: the fence of every write to its jobs.
SELECT claimed_at, jobs FROM windlass_lease WHERE lease = ?1 AND node = ?2;
