-- The values whose names begin with ?1 and whose time is not over at ?2, from the last name on.
SELECT name, value FROM windlass_setting
WHERE substr(name, 1, length(?1)) = ?1 AND until > ?2
ORDER BY name DESC LIMIT ?3
