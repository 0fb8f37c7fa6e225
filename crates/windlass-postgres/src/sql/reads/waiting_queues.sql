-- Queues that have ready jobs, each with about its oldest: the first chunk of each line. Steps from line to line by
-- ready_claim, whatever the number of chunks.
with recursive line as (
    (select queue, rank, first from windlass.ready order by queue, rank, position, first limit 1)
    union all
    select n.queue, n.rank, n.first
    from line l
    cross join lateral (select queue, rank, first from windlass.ready r where (r.queue, r.rank) > (l.queue, l.rank)
                        order by queue, rank, position, first limit 1) n)
select queue, min(first) as oldest from line group by queue order by queue
