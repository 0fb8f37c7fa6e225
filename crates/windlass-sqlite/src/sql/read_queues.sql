-- The queues that have ready jobs, by jumping from one to the next: a plain DISTINCT would walk every chunk.
WITH RECURSIVE step (queue) AS (
    SELECT min(queue) FROM windlass_ready
    UNION ALL
    SELECT (SELECT min(queue) FROM windlass_ready WHERE windlass_ready.queue > step.queue)
    FROM step WHERE step.queue IS NOT NULL
)
SELECT queue FROM step WHERE queue IS NOT NULL;
