-- Edges from or to one of $1, at most $2. edge_pkey, edge_child.
select e.parent_id, e.child_id from windlass.edge e where e.parent_id = any ($1)
union
select e.parent_id, e.child_id from windlass.edge e where e.child_id = any ($1)
order by 1, 2 limit $2
