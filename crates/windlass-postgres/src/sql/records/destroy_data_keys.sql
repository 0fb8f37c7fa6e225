-- Remove the data keys of tenant $1.
update windlass.data_key set wrapped = null where tenant_id = $1 and wrapped is not null returning true
