-- The leases held now whose names begin with $1, by name, at most $2.
select epoch, position, name, node_id, until from windlass.holding
where name >= $1 and starts_with(name, $1) and node_id is not null and until > clock_timestamp()
order by name limit $2
