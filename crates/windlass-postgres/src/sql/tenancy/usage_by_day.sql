-- The costs of tenant $1 (null for all) from day $2 to day $3. usage_pkey.
select u.tenant_id, u.handler, to_char(u.day, 'YYYY-MM-DD'), u.jobs, u.cents, u.units from windlass.usage u
where u.day between $2::text::date and $3::text::date and ($1::uuid is null or u.tenant_id = $1)
order by u.day, u.tenant_id, u.handler collate "C"
