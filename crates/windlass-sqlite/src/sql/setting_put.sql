-- Keep value ?2 under name ?1 until ?3, in place of the one that is there.
INSERT INTO windlass_setting (name, value, until) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, until = excluded.until
