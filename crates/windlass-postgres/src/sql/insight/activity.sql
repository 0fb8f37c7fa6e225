-- What is kept in buckets of $1 seconds since $3: of tenant $2, or of all together. activity_key.
select at, handler, sums from windlass.activity where $2::uuid is null and tenant_id is null and resolution = $1 and at >= $3
union all
select at, handler, sums from windlass.activity where tenant_id = $2 and resolution = $1 and at >= $3
