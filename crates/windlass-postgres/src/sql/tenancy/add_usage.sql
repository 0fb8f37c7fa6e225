-- Adds what jobs have cost. p_ended says of each whether it came with the end of its job.
create or replace function windlass.add_usage(p_id bigint[], p_cents bigint[], p_units bigint[], p_ended boolean[]) returns void
language plpgsql set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
begin
    insert into windlass.job_cost as c (id, cents, units)
    select u.id, sum(u.cents), sum(u.units) from unnest(p_id, p_cents, p_units) u(id, cents, units)
    where exists (select 1 from windlass.job where job.id = u.id)
    group by u.id order by u.id
    on conflict (id) do update
    -- Bounded as one record is (Cost::MAX), so that sums of sums fit.
    set cents = least(1000000000000, greatest(-1000000000000, c.cents + excluded.cents)),
        units = least(1000000000000, greatest(-1000000000000, c.units + excluded.units));
    with e as (
        insert into windlass.usage_event (id, tenant_id, handler, cents, units, at)
        select j.id, j.tenant_id, j.handler, u.cents, u.units, v_now
        from unnest(p_id, p_cents, p_units) u(id, cents, units)
        cross join lateral (select id, tenant_id, handler from windlass.job where job.id = u.id offset 0) j),
    s as (
        select j.tenant_id, j.handler, count(*) filter (where u.ended) as jobs, sum(u.cents) as cents, sum(u.units) as units
        from unnest(p_id, p_cents, p_units, p_ended) u(id, cents, units, ended)
        cross join lateral (select tenant_id, handler from windlass.job where job.id = u.id offset 0) j
        group by j.tenant_id, j.handler order by j.tenant_id, j.handler)
    insert into windlass.usage as u (day, tenant_id, handler, jobs, cents, units)
    select (v_now at time zone 'UTC')::date, s.tenant_id, s.handler, s.jobs, s.cents, s.units from s
    on conflict (day, tenant_id, handler) do update
    -- A sum that is too large must not keep a job from ending.
    set jobs = u.jobs + excluded.jobs,
        cents = least(9e18, greatest(-9e18, u.cents::numeric + excluded.cents))::bigint,
        units = least(9e18, greatest(-9e18, u.units::numeric + excluded.units))::bigint;
end $$;
