-- Free the lease $1, if it is held under epoch $2.
update windlass.holding set node_id = null where name = $1 and epoch = $2 and node_id is not null returning true
