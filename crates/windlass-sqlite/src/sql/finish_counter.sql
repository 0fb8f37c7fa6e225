-- Count ended jobs, or take back what was counted for one that is replayed.
INSERT INTO windlass_counter (tenant, status, jobs) VALUES (?1, ?2, ?3)
ON CONFLICT (tenant, status) DO UPDATE SET jobs = max(0, jobs + excluded.jobs);
