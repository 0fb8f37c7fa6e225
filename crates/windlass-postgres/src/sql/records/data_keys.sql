-- The data keys of tenant $1, or of all.
select tenant_id, version, kek, wrapped, created_at from windlass.data_key where $1::uuid is null or tenant_id = $1 order by 1, 2
