-- Replace the wrapping ($3, $4) of version $2 of the data key of tenant $1 by ($5, $6).
update windlass.data_key set kek = $5, wrapped = $6 where tenant_id = $1 and version = $2 and kek = $3 and wrapped = $4 returning true
