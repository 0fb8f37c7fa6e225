-- Keep value ?2 under name ?1 unless there is one; answer with the one that is kept.
INSERT INTO windlass_setting (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = value RETURNING value
