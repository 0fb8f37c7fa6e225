-- Revoke API key ?2 of tenant ?1, or of any, at ?3, unless it was before.
UPDATE windlass_api_key SET revoked_at = ?3 WHERE id = ?2 AND (?1 IS NULL OR tenant = ?1) AND revoked_at IS NULL
RETURNING tenant, name, rights
