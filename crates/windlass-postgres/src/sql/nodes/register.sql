-- Gives a process an identity and a machine slot that nobody has had for a while; no row where all slots are taken.
create or replace function windlass.register(p_info json, p_quarantine interval)
returns table (o_node bigint, o_slot smallint, o_now timestamptz) language plpgsql as $$
#variable_conflict use_column
declare
    -- Never the same again, even if a failover or a restore has set the sequence back while nodes live on that it does
    -- not know of: two that took themselves for one would keep each other's jobs alive.
    v_node bigint := (nextval('windlass.node_seq') << 20) | floor(random() * 1048576)::bigint;
    v_slot smallint;
    v_free_at timestamptz;
begin
    select s.slot, s.free_at into v_slot, v_free_at from windlass.slot s
    -- Any of them, for the same reason: the next in order is the one that a forgotten node has.
    where s.node_id is null and s.free_at <= clock_timestamp() order by random() limit 1 for update skip locked;
    if not found then
        return;
    end if;
    update windlass.slot s set node_id = v_node where s.slot = v_slot;
    insert into windlass.node (node_id, slot, info) values (v_node, v_slot, p_info);
    return query select v_node, v_slot, clock_timestamp();
end $$;
