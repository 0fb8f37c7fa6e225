-- Keep version ?2 of the data key of tenant ?1, unless there has been one.
INSERT INTO windlass_data_key (tenant, version, kek, wrapped, created_at) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING
