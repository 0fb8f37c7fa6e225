-- Adds two rows of numbers. Each sum stays within what a bigint takes: one bucket must not keep the others from being written.
create or replace function windlass.add_numbers(p_a bigint[], p_b bigint[]) returns bigint[] language sql immutable as
$$ select array_agg(least(9e18, greatest(-9e18, coalesce(u.a, 0)::numeric + coalesce(u.b, 0)))::bigint order by u.n)
   from unnest(p_a, p_b) with ordinality u(a, b, n) $$;

-- Adds to one bucket of each resolution. p_sums has the numbers of one tenant and handler after the other. Sorted, so that
-- two nodes cannot wait for each other.
create or replace function windlass.add_activity(
    p_at timestamptz, p_resolutions smallint[], p_tenants uuid[], p_handlers text[], p_sums bigint[]
) returns void language plpgsql set lock_timeout = '500ms' as $$
#variable_conflict use_column
declare
    v_width int := cardinality(p_sums) / greatest(cardinality(p_handlers), 1);
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into windlass.activity as a (at, tenant_id, resolution, handler, sums)
    select date_bin(make_interval(secs => r.seconds), p_at, 'epoch'), t.tenant_id, r.seconds, t.handler,
           p_sums[(t.n - 1) * v_width + 1 : t.n * v_width]
    from unnest(p_tenants, p_handlers) with ordinality t(tenant_id, handler, n)
    cross join unnest(p_resolutions) r(seconds)
    order by r.seconds, t.tenant_id, t.handler collate "C"
    on conflict (resolution, tenant_id, at, handler) do update set sums = windlass.add_numbers(a.sums, excluded.sums);
end $$;
