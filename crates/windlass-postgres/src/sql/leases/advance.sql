-- Store that the holder of lease $1 has come to $3, if it is held under epoch $2.
update windlass.holding set position = $3 where name = $1 and epoch = $2 and node_id is not null returning true
