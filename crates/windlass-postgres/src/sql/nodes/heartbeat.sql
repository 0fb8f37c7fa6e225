-- Renew a node and read its requested cancels. node_pkey and lease_node. No first row means that it was declared dead.
-- Losing the newest beats in a crash of the server is harmless, so the commit does not wait for the disk.
with beat as (
    update windlass.node set heartbeat_at = clock_timestamp(), running = $2
    where node_id = $1 and set_config('synchronous_commit', 'off', true) is not null returning node_id)
select b.node_id, c.lease_id, c.id
from beat b
left join lateral (select l.lease_id, x.id from windlass.lease l cross join unnest(l.canceled) x(id)
                   where l.node_id = b.node_id and l.canceled <> '{}' and x.id = any (l.ids)) c on true
