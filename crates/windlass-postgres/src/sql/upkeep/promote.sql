-- Makes due jobs ready, at most p_limit, from the hint p_from on. Answers how many, when the next is due and the last that was.
create or replace function windlass.promote(p_from timestamptz, p_limit int)
returns table (o_jobs int, o_next_us bigint, o_last timestamptz) language plpgsql
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_next timestamptz;
    r record;
begin
    with d as (
        delete from windlass.scheduled s where s.ctid = any (array(
            select t.ctid from windlass.scheduled t where t.run_at <= v_now and t.run_at >= p_from
            order by t.run_at, t.id limit p_limit for update skip locked))
        returning s.*),
    o as (select * from d order by d.run_at, d.id)
    select array_agg(o.id) as ids, array_agg(o.queue) as queues, array_agg(o.rank) as ranks,
           array_agg(o.tenant_id) as tenants, array_agg(o.failed) as failed, array_agg(o.recoveries) as recoveries,
           array_agg(o.resumed) as resumed, max(o.run_at) as last
    into r from o;
    if r.ids is not null then
        perform windlass.make_ready(r.ids, r.queues, r.ranks, r.tenants, r.failed, r.recoveries, r.resumed, false, true);
    end if;
    select s.run_at into v_next from windlass.scheduled s where s.run_at >= p_from order by s.run_at limit 1;
    return query select coalesce(cardinality(r.ids), 0),
        case when v_next is not null then
            (extract(epoch from greatest(v_next - clock_timestamp(), interval '0')) * 1000000)::bigint end, r.last;
end $$;
