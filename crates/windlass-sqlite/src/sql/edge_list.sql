-- Edges from or to one of ?1, at most ?2.
SELECT parent, child FROM windlass_edge WHERE parent IN (SELECT value FROM json_each(?1))
UNION
SELECT parent, child FROM windlass_edge WHERE child IN (SELECT value FROM json_each(?1))
ORDER BY 1, 2 LIMIT ?2;
