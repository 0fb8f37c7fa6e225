-- Remove the data keys of tenant ?1.
UPDATE windlass_data_key SET wrapped = NULL WHERE tenant = ?1 AND wrapped IS NOT NULL
