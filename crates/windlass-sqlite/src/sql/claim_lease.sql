-- Keep what was claimed: the fence of its jobs, and what is recovered if the node is lost.
INSERT INTO windlass_lease (lease, node, claimed_at, jobs) VALUES (?1, ?2, ?3, ?4);
