-- What of the schema was changed, removed or added since the last migration. Function windlass.schema_drift, migration 10.
select o_name, o_change from windlass.schema_drift()
