-- The first chunk of each line, by queue. Lines are found from the index windlass_ready_in_line alone.
SELECT line.queue,
       (SELECT ids FROM windlass_ready AS first
        WHERE first.queue = line.queue AND first.rank = line.rank
        ORDER BY first.position, first.n LIMIT 1)
FROM (SELECT DISTINCT queue, rank FROM windlass_ready) AS line
ORDER BY line.queue;
