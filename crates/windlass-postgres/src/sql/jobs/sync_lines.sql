-- Publishes how far service has come and learns what others have published.
create or replace function windlass.sync_lines(
    p_queues text[], p_ranks smallint[], p_served bigint[],
    p_tenant_queues text[], p_tenant_ranks smallint[], p_tenants uuid[], p_next bigint[]
) returns table (o_queue text, o_rank smallint, o_tenant uuid, o_at bigint) language plpgsql
set enable_seqscan = off set jit = off set lock_timeout = '500ms' as $$
#variable_conflict use_column
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into windlass.line as l (queue, rank, served)
    select * from unnest(p_queues, p_ranks, p_served) u(queue, rank, served) order by 1, 2
    on conflict (queue, rank) do update set served = excluded.served where l.served < excluded.served;
    insert into windlass.tenant_line as t (queue, rank, tenant_id, next)
    select * from unnest(p_tenant_queues, p_tenant_ranks, p_tenants, p_next) u order by 1, 2, 3
    on conflict (queue, rank, tenant_id) do update set next = excluded.next where t.next < excluded.next;
    -- A tenant that service has caught up with is like any other.
    delete from windlass.tenant_line t using windlass.line l
    where t.queue = any (p_queues) and l.queue = t.queue and l.rank = t.rank and l.served >= t.next;
    return query select l.queue, l.rank, null::uuid, l.served from windlass.line l
    union all select t.queue, t.rank, t.tenant_id, t.next from windlass.tenant_line t;
end $$;
