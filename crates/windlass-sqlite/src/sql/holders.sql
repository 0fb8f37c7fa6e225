-- The leases held at ?2 whose names begin with ?1, by name, at most ?3.
SELECT epoch, position, name, node, until FROM windlass_holding
WHERE name >= ?1 AND substr(name, 1, length(?1)) = ?1 AND node IS NOT NULL AND until > ?2
ORDER BY name LIMIT ?3
