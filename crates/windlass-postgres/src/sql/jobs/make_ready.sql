-- Packs waiting jobs into ready chunks. Suspects (a node was lost with them) wait one by one. Jobs that waited before
-- go to the front; the others take their tenant's turn, which `p_remember` keeps for the next ones.
create or replace function windlass.make_ready(
    p_ids bigint[], p_queues text[], p_ranks smallint[], p_tenants uuid[], p_failed integer[],
    p_recoveries integer[], p_resumed boolean[], p_front boolean, p_remember boolean default false
) returns int language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v record;
begin
    with x as (
        select u.*, row_number() over (partition by u.queue, u.rank, u.tenant_id, u.failed, u.recoveries, u.resumed
                                       order by u.n) - 1 as k
        from unnest(p_ids, p_queues, p_ranks, p_tenants, p_failed, p_recoveries, p_resumed)
             with ordinality u(id, queue, rank, tenant_id, failed, recoveries, resumed, n)),
    c as (
        select queue, rank, tenant_id, failed, recoveries, resumed, min(k) as k, array_agg(id order by n) as ids
        from x group by queue, rank, tenant_id, failed, recoveries, resumed,
                        case when recoveries > 0 then k else k / 128 end),
    r as (
        insert into windlass.ready (queue, rank, position, first, tenant_id, failed, recoveries, resumed, ids)
        select c.queue, c.rank,
               case when p_front then coalesce(l.served, 0)
                    else windlass.position_of(greatest(coalesce(l.served, 0), coalesce(t.next, 0)) + c.k) end,
               c.ids[1], c.tenant_id, c.failed, c.recoveries, c.resumed, c.ids
        from c
        left join lateral (select served from windlass.line l
                           where l.queue = c.queue and l.rank = c.rank offset 0) l on true
        left join lateral (select next from windlass.tenant_line t
                           where not p_front and t.queue = c.queue and t.rank = c.rank and t.tenant_id = c.tenant_id
                           offset 0) t on true
        returning queue, rank, tenant_id, position, cardinality(ids) as jobs),
    -- Only crowds are worth a row of `tenant_line`: a tenant with a few jobs is not ahead of anybody.
    t as (select queue, rank, tenant_id, max(position + jobs) as next from r where p_remember
          group by queue, rank, tenant_id having sum(jobs) >= 128)
    select (select coalesce(sum(jobs), 0) from r) as jobs, array_agg(t.queue) as queues, array_agg(t.rank) as ranks,
           array_agg(t.tenant_id) as tenants, array_agg(t.next) as next
    into v from t;
    if v.queues is not null then
        begin
            insert into windlass.tenant_line (queue, rank, tenant_id, next)
            select u.queue, u.rank, u.tenant_id, windlass.position_of(u.next)
            from unnest(v.queues, v.ranks, v.tenants, v.next) u(queue, rank, tenant_id, next) order by 1, 2, 3
            on conflict (queue, rank, tenant_id) do update set next = greatest(tenant_line.next, excluded.next);
        exception when lock_not_available then
            -- Only a hint. Jobs do not wait for whoever holds it.
            null;
        end;
    end if;
    return v.jobs;
end $$;
