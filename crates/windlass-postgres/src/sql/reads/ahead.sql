-- How many ready jobs come before job $1 of tenant $2 in its queue. Reads the chunks of the tenant to find it: rare.
with c as materialized (
    select queue, rank, position, first, array_position(ids, $1) - 1 as before
    from windlass.ready where tenant_id = $2 and ids @> array[$1] limit 1)
select c.queue, (c.before + coalesce((
    select sum(cardinality(r.ids)) from windlass.ready r
    where r.queue = c.queue and (r.rank, r.position, r.first) < (c.rank, c.position, c.first)), 0))::bigint as ahead
from c
