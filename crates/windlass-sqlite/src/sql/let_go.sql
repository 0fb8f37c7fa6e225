-- Free the lease ?1, if it is held under epoch ?2.
UPDATE windlass_holding SET node = NULL WHERE name = ?1 AND epoch = ?2 AND node IS NOT NULL
