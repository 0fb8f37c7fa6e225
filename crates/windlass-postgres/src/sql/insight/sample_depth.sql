-- Counts jobs by status for the present bucket of each resolution, unless somebody has done so for the finest one. Reads
-- what waits and runs; ended jobs are counted already.
create or replace function windlass.sample_depth(p_resolutions smallint[]) returns void language plpgsql
set jit = off set lock_timeout = '500ms' as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_finest smallint := (select min(r.seconds) from unnest(p_resolutions) r(seconds));
    v_counts bigint[];
begin
    if exists (select 1 from windlass.depth d where d.resolution = v_finest
               and d.at = date_bin(make_interval(secs => v_finest), v_now, 'epoch')) then
        return;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    select array_agg(coalesce(c.n, 0) order by s.code) into v_counts
    from generate_series(0, 8) s(code)
    left join (select l.status, sum(l.n)::bigint as n from (
                   select 0::smallint as status, coalesce(sum(cardinality(ids)), 0)::bigint as n from windlass.ready
                   union all select kind, count(*) from windlass.scheduled group by kind
                   union all select 3::smallint, count(*) from windlass.gated
                   union all select 5::smallint, coalesce(sum(cardinality(ids)), 0)::bigint from windlass.lease
                   union all select e.status, e.n from windlass.ended(null) e) l
               group by l.status) c on c.status = s.code;
    insert into windlass.depth (at, resolution, counts)
    select date_bin(make_interval(secs => r.seconds), v_now, 'epoch'), r.seconds, v_counts
    from unnest(p_resolutions) r(seconds) order by r.seconds
    on conflict do nothing;
end $$;
