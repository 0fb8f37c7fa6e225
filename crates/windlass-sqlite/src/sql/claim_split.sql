-- Leave the rest of a chunk whose first jobs were taken, as far back as they were many: that is its tenant's turn.
UPDATE windlass_ready SET position = ?2, jobs = ?3, ids = ?4 WHERE n = ?1;
