-- Queues that have ready jobs, with the oldest id of their first chunks. Skips along ready_claim from queue to queue.
with recursive q(queue) as (
    (select queue from windlass.ready order by queue limit 1)
    union all
    select (select r.queue from windlass.ready r where r.queue > q.queue order by r.queue limit 1)
    from q where q.queue is not null
)
select q.queue,
       (select min(c.first) from (select r.first from windlass.ready r where r.queue = q.queue
                                  order by r.rank, r.position, r.first limit 16) c)
from q
where q.queue is not null and exists (select 1 from windlass.ready r where r.queue = q.queue)
