-- Moves a schedule on that still has the version ?3 and the due time ?4 it was read with.
UPDATE windlass_schedule SET next_at = ?5, last_at = coalesce(?6, last_at)
WHERE tenant = ?1 AND name = ?2 AND version = ?3 AND next_at = ?4 AND NOT paused
