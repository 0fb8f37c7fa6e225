-- Keep an API key.
INSERT INTO windlass_api_key (id, tenant, home, name, acts_as, rights, hash, created_at, created_by, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
