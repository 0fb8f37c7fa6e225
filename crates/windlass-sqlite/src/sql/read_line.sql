-- The chunks of a queue in the order in which they are served.
SELECT ids FROM windlass_ready WHERE queue = ?1 ORDER BY rank, position, n;
