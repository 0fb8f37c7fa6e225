-- The jobs that node $1 holds, with their leases. lease_node.
select l.lease_id, x.id from windlass.lease l cross join unnest(l.ids) x(id) where l.node_id = $1
