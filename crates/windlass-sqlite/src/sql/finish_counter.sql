-- Count ended jobs, or take back what was counted for one that is replayed.
INSERT INTO windlass_counter (tenant, status, jobs) VALUES (?1, ?2, ?3)
ON CONFLICT (tenant, status) DO UPDATE SET jobs = min(4611686018427387904, max(0, jobs + excluded.jobs));
