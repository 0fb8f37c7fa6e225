-- Ordering keys whose holder has ended, among the next $3. Function windlass.ended_holders, migration 6; key_holder_pkey.
select o_tenants, o_keys, o_last_tenant, o_last_key, o_scanned from windlass.ended_holders($1, $2, $3)
