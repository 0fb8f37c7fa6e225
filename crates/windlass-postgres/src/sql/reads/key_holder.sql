-- Who holds ordering key $2 of tenant $1. key_holder_pkey.
select id from windlass.key_holder where tenant_id = $1 and ordering_key = $2
