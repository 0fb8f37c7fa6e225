-- The chunks of queue ?1 in the band of ranks ?2 to ?3, in the order in which they are served. The caller stops reading
-- when it has enough. Served by windlass_ready_in_line.
SELECT n, rank, position, tenant, failed, recoveries, resumed, ready_at, ids
FROM windlass_ready
WHERE queue = ?1 AND rank BETWEEN ?2 AND ?3
ORDER BY rank, position, n;
