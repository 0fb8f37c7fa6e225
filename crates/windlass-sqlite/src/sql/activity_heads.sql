-- Since when the job that stands first in each line has been ready, by jumping from line to line.
WITH RECURSIVE step (queue, rank) AS (
    SELECT * FROM (SELECT queue, rank FROM windlass_ready ORDER BY queue, rank LIMIT 1)
    UNION ALL
    SELECT next.queue, next.rank FROM step, windlass_ready AS next
    WHERE next.n = (SELECT n FROM windlass_ready WHERE (queue, rank) > (step.queue, step.rank)
                    ORDER BY queue, rank, position, n LIMIT 1)
)
SELECT (SELECT ready_at FROM windlass_ready AS head WHERE head.queue = step.queue AND head.rank = step.rank
        ORDER BY position, n LIMIT 1)
FROM step;
