-- Queues that have ready jobs, each with the lowest first id of its first chunks. Walks ready_claim from queue to queue.
with recursive q(queue) as (
    (select r.queue from windlass.ready r order by r.queue limit 1)
    union all
    select (select r.queue from windlass.ready r where r.queue > q.queue order by r.queue limit 1)
    from q where q.queue is not null
)
select q.queue, o.oldest from q
cross join lateral (
    select min(f.first) as oldest from (
        select r.first from windlass.ready r where r.queue = q.queue order by r.queue, r.rank, r.position, r.first limit 16) f
) o
where q.queue is not null and o.oldest is not null
