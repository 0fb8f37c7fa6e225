-- Raise a high-water mark.
INSERT INTO windlass_mark (name, value) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value);
