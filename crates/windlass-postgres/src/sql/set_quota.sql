-- Set or clear (null) the policy of a tenant, or the default one (null). Function windlass.set_quota, migration 9.
select windlass.set_quota($1, $2, $3)
