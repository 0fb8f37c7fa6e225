-- A sum of counts that the constraints of counters allow. What something else has written into a row that is folded must
-- not keep the others.
create or replace function windlass.bounded_count(p_n numeric) returns bigint language sql immutable as
$$ select least(1e15, greatest(-1e15, p_n))::bigint $$;

-- Folds counter deltas, and the ends of what is gone by now. Sorted, so that two folders cannot wait for each other.
create or replace function windlass.fold_counters(p_limit int) returns int language plpgsql
set lock_timeout = '500ms' as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_rows int;
begin
    with d as (
        delete from windlass.counter_delta c where c.ctid = any (array(
            select e.ctid from windlass.counter_delta e limit p_limit for update skip locked))
        returning c.*),
    s as materialized (
        select u.tenant_id, u.status, u.until, windlass.bounded_count(sum(u.n)) as n
        from d cross join unnest(d.tenants, d.statuses, d.counts, d.untils) u(tenant_id, status, n, until)
        where u.tenant_id is not null and u.status is not null and u.n is not null
        group by 1, 2, 3),
    g as (
        delete from windlass.counter_end c where c.ctid = any (array(
            select e.ctid from windlass.counter_end e where e.until <= v_now
            order by e.until limit p_limit for update skip locked))
        returning c.*),
    e as (
        insert into windlass.counter_end as c (until, tenant_id, status, n)
        select s.until, s.tenant_id, s.status, s.n from s where s.until > v_now order by 1, 2, 3
        on conflict (until, tenant_id, status) do update set n = windlass.bounded_count(c.n + excluded.n)),
    t as (
        select x.tenant_id, x.status, windlass.bounded_count(sum(x.n)) as n, windlass.bounded_count(sum(x.gone)) as gone
        from (select s.tenant_id, s.status, s.n, case when s.until <= v_now then s.n else 0 end as gone from s
              union all select g.tenant_id, g.status, 0, g.n from g) x
        group by 1, 2 order by 1, 2),
    f as (
        insert into windlass.counter as c (tenant_id, status, n, gone) select * from t
        on conflict (tenant_id, status) do update
        set n = windlass.bounded_count(c.n + excluded.n), gone = windlass.bounded_count(c.gone + excluded.gone))
    select count(*) into v_rows from d;
    return v_rows;
end $$;
