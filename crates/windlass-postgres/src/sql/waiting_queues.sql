-- Queues that have ready jobs, with the lowest first id of the chunks of each.
select queue, min(first) from windlass.ready group by queue;
