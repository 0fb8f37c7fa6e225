-- Replace the wrapping (?3, ?4) of version ?2 of the data key of tenant ?1 by (?5, ?6).
UPDATE windlass_data_key SET kek = ?5, wrapped = ?6 WHERE tenant = ?1 AND version = ?2 AND kek = ?3 AND wrapped = ?4
