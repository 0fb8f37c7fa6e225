-- Note that API key ?1 was used at ?2.
UPDATE windlass_api_key SET last_used_at = ?2 WHERE id = ?1 AND (last_used_at IS NULL OR last_used_at < ?2)
