-- The data keys of tenant ?1, or of all.
SELECT tenant, version, kek, wrapped, created_at FROM windlass_data_key WHERE ?1 IS NULL OR tenant = ?1 ORDER BY tenant, version
