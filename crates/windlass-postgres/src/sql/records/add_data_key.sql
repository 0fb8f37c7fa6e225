-- Keep version $2 of the data key of tenant $1, unless there has been one.
insert into windlass.data_key (tenant_id, version, kek, wrapped) values ($1, $2, $3, $4) on conflict do nothing returning true
