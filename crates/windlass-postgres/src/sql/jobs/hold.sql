-- How attempts end. The lease row decides: it is locked first, and what it holds then is what is accepted. A statement
-- that waited for it sees its newest version but an old snapshot of other tables, so nothing else decides. Leases are
-- found by their id; `node_id + 0` keeps the index by node out, which would read all that a node has held lately.

-- Locks leases of a node and says of each fence, in order, whether it holds, with the counts of its job and the reason of
-- a requested cancel, and the ids of the jobs that are held.
-- Nested loops are off: the planner does not know how long an array is, and comparing every job of a lease with every job
-- of a batch took seconds for two thousand. Only here and in shrink_leases, which call nothing: a function that is first
-- called under this setting keeps the plans made under it, and a key would be looked up by reading all keys.
create or replace function windlass.hold(
    p_node bigint, p_leases bigint[], p_lease bigint[], p_id bigint[],
    out o_held boolean[], out o_failed integer[], out o_recoveries integer[], out o_cancel text[],
    out o_ids bigint[]
) language plpgsql
set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    with l as materialized (
        select l.lease_id, l.part, l.failed, l.recoveries, l.ids, l.canceled, l.cancel_reasons from windlass.lease l
        where l.lease_id = any (p_leases) and l.node_id + 0 = p_node order by l.lease_id, l.part for update),
    u as materialized (
        select l.lease_id, l.part, x.id, l.failed, l.recoveries,
               case when l.canceled = '{}' then null
                    else l.cancel_reasons[array_position(l.canceled, x.id)] end as cancel
        from l cross join unnest(l.ids) x(id)),
    a as materialized (
        select f.n, f.lease, u.part, f.id, u.id is not null as held, u.failed, u.recoveries, u.cancel
        from unnest(p_lease, p_id) with ordinality f(lease, id, n)
        left join u on u.lease_id = f.lease and u.id = f.id)
    select array_agg(a.held order by a.n), array_agg(a.failed order by a.n), array_agg(a.recoveries order by a.n),
           array_agg(a.cancel order by a.n), array_agg(a.id) filter (where a.held)
    into o_held, o_failed, o_recoveries, o_cancel, o_ids
    from a;
end $$;

-- Takes jobs out of leases that the caller has locked: used up parts go, the others keep the rest.
create or replace function windlass.shrink_leases(p_leases bigint[], p_ids bigint[]) returns void language plpgsql
set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    with r as materialized (
        select k.lease_id, k.part, cardinality(k.ids) as jobs,
               array(select x.id from unnest(k.ids) x(id) where x.id <> all (p_ids)) as rest
        from windlass.lease k where k.lease_id = any (p_leases)),
    d as (
        delete from windlass.lease l using r
        where l.lease_id = any (p_leases) and l.lease_id = r.lease_id and l.part = r.part and r.rest = '{}')
    update windlass.lease l set ids = r.rest from r
    where l.lease_id = any (p_leases) and l.lease_id = r.lease_id and l.part = r.part and r.rest <> '{}'
      and cardinality(r.rest) < r.jobs;
end $$;
