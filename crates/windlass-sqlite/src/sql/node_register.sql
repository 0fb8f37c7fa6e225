-- Give a process its identity.
INSERT INTO windlass_node (slot, info, running, started_at, heartbeat_at) VALUES (?1, ?2, 0, ?3, ?3) RETURNING node;
