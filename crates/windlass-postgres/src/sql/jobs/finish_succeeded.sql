-- Attempts that all succeeded, by parts of leases: jobs p_lo to p_hi of the list are part p_part of lease p_lease. A part
-- is accepted whole or not at all: it must hold all of them, and no cancel may have been requested in it. Given in the
-- order of the lease, all jobs of a part are recognised by one comparison. Answers the
-- accepted ones by their place; the others are for `finish`. p_keep: one for each job, or one for all. p_count_…: how
-- many jobs of a tenant, kept for one time, are in a part. Calls nothing, so that its settings reach no other plan.
create or replace function windlass.finish_succeeded(
    p_node bigint, p_lease bigint[], p_part smallint[], p_lo int[], p_hi int[], p_id bigint[], p_ran bigint[],
    p_keep bigint[], p_output json[], p_count_place int[], p_count_tenant uuid[], p_count_jobs bigint[],
    p_count_keep bigint[]
) returns int[] language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan set lock_timeout = '2s' as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_purge_at timestamptz := windlass.gone_at(v_now, p_keep[1]);
    v_places int[]; v_failed integer[]; v_recoveries integer[]; v_whole tid[]; v_part int[];
    v_n int;
begin
    -- Locked first and changed after: a statement that waited for a lock would change the version it saw before.
    select coalesce(array_agg(a.n), '{}'), array_agg(a.failed), array_agg(a.recoveries),
           array_agg(a.ctid) filter (where a.whole), array_agg(a.n) filter (where not a.whole)
    into v_places, v_failed, v_recoveries, v_whole, v_part
    from (select u.n::int as n, l.ctid, l.failed, l.recoveries, l.ids = p_id[u.lo:u.hi] as whole, u.lo, u.hi, l.ids
          from unnest(p_lease, p_part, p_lo, p_hi) with ordinality u(lease, part, lo, hi, n)
          cross join lateral (select l.ctid, l.failed, l.recoveries, l.ids from windlass.lease l
                              where l.lease_id = u.lease and l.part = u.part and l.node_id + 0 = p_node
                                and l.canceled = '{}' for update) l) a
    where case when a.whole then true
               else cardinality(a.ids) > a.hi - a.lo + 1 and p_id[a.lo:a.hi] <@ a.ids end;
    if v_whole is not null then
        delete from windlass.lease l where l.ctid = any (v_whole);
        get diagnostics v_n = row_count;
        if v_n <> cardinality(v_whole) then
            -- Locked rows cannot go away; were it otherwise, ended jobs would run again.
            raise exception 'windlass: % of % ended parts were there', v_n, cardinality(v_whole) using errcode = '40001';
        end if;
    end if;
    if v_part is not null then
        foreach v_n in array v_part loop
            update windlass.lease l
            set ids = array(select x.id from unnest(l.ids) x(id) where x.id <> all (p_id[p_lo[v_n]:p_hi[v_n]]))
            where l.lease_id = p_lease[v_n] and l.part = p_part[v_n];
        end loop;
    end if;
    if cardinality(v_places) = cardinality(p_lease) and 0 = all (v_failed) and 0 = all (v_recoveries) then
        insert into windlass.outcome (id, finished_at, started_at, purge_at, node_id, status, attempt, failed,
                                      recoveries, output)
        select j.id, v_now, v_now - j.ran * interval '1 microsecond',
               case when j.keep is null then v_purge_at else windlass.gone_at(v_now, j.keep) end, p_node, 6, 1, 0, 0,
               j.output
        from unnest(p_id, p_ran, p_keep, p_output) j(id, ran, keep, output);
    elsif v_places <> '{}' then
        insert into windlass.outcome (id, finished_at, started_at, purge_at, node_id, status, attempt, failed,
                                      recoveries, output)
        select j.id, v_now, v_now - j.ran * interval '1 microsecond',
               case when j.keep is null then v_purge_at else windlass.gone_at(v_now, j.keep) end, p_node, 6,
               a.failed + a.recoveries + 1, a.failed, a.recoveries, j.output
        from unnest(v_places, v_failed, v_recoveries) a(place, failed, recoveries)
        join unnest(p_id, p_ran, p_keep, p_output) with ordinality j(id, ran, keep, output, n)
            on j.n between p_lo[a.place] and p_hi[a.place];
    end if;
    insert into windlass.counter_delta (tenants, statuses, counts, untils)
    select array_agg(t.tenant), array_agg(6::smallint), array_agg(t.jobs), array_agg(t.until)
    from (select c.tenant, case when c.keep is null then v_purge_at else windlass.gone_at(v_now, c.keep) end as until,
                 sum(c.jobs)::bigint as jobs
          from unnest(p_count_place, p_count_tenant, p_count_jobs, p_count_keep) c(place, tenant, jobs, keep)
          where c.place = any (v_places) group by 1, 2) t
    having count(*) > 0;
    return v_places;
end $$;
