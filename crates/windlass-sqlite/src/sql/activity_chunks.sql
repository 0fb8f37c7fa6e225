-- The chunks of queue ?1 with their sizes, of tenant ?2 or of all, at most ?3. Served by windlass_ready_in_line alone.
SELECT n, jobs FROM windlass_ready WHERE queue = ?1 AND (?2 IS NULL OR tenant = ?2) ORDER BY rank, position, n LIMIT ?3;
