-- Store that the holder of lease ?1 has come to ?3, if it is held under epoch ?2.
UPDATE windlass_holding SET position = ?3 WHERE name = ?1 AND epoch = ?2 AND node IS NOT NULL
