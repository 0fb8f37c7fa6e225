-- Fires schedules, given as a JSON array of {tenant, name, version, due, last, next, jobs} with times in microseconds, for
-- the holder of the lease under p_epoch. For each that is still as it was read: a row per job, or one without a job. One
-- row with -1 if the lease is lost: whoever takes it over waits for this transaction, or has won.
create or replace function windlass.fire(p_epoch bigint, p_firings json)
returns table (firing int, id bigint, duplicate boolean) language plpgsql as $$
#variable_conflict use_column
declare
    v_fits int[] := '{}';
    v_jobs json;
    v_counts int[];
    f record;
begin
    perform 1 from windlass.holding h
    where h.name = 'schedules' and h.epoch = p_epoch and h.node_id is not null for share;
    if not found then
        return query select -1, null::bigint, null::boolean;
        return;
    end if;
    for f in
        select (e.n - 1)::int as n, (e.x->>'tenant')::uuid as tenant_id, e.x->>'name' as name,
               (e.x->>'version')::bigint as version, windlass.at_micros((e.x->>'due')::bigint) as due,
               windlass.at_micros((e.x->>'last')::bigint) as last_at, windlass.at_micros((e.x->>'next')::bigint) as next_at
        from json_array_elements(p_firings) with ordinality e(x, n)
    loop
        update windlass.schedule s set next_at = f.next_at, last_at = coalesce(f.last_at, s.last_at)
        where s.tenant_id = f.tenant_id and s.name = f.name and s.version = f.version and s.next_at = f.due
          and not s.paused;
        if found then
            v_fits := v_fits || f.n;
        end if;
    end loop;
    select json_agg(j.x order by e.n, j.n) filter (where j.x is not null),
           array_agg((e.n - 1)::int order by e.n, j.n)
    into v_jobs, v_counts
    from json_array_elements(p_firings) with ordinality e(x, n)
    cross join lateral json_array_elements(e.x->'jobs') with ordinality j(x, n)
    where (e.n - 1) = any (v_fits);
    if v_jobs is not null then
        return query
        select v_counts[s.n], s.id, s.duplicate
        from windlass.store_jobs_within(v_jobs, true, true) with ordinality s(id, duplicate, n);
    end if;
    return query select u.n, null::bigint, null::boolean from unnest(v_fits) u(n) where u.n <> all (coalesce(v_counts, '{}'));
end $$;

-- A point in time, from microseconds since 1970.
create or replace function windlass.at_micros(p_micros bigint) returns timestamptz language sql immutable as $$
    select timestamptz 'epoch' + p_micros * interval '1 microsecond'
$$;
