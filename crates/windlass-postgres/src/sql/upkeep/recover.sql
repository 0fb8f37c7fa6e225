-- Removes nodes that were seen with a heartbeat and still have it, if the lease is over by this clock too; or if a clock
-- that was set back has left it in the future, where this clock can say nothing.
-- Waits for no lock for long, and takes node by node: what somebody holds of one (its slot, the note of when its handlers
-- were served), and what cannot be read of one, leaves that one for the next time, and no other.
create or replace function windlass.recover(p_lease interval, p_quarantine interval, p_nodes bigint[], p_seen timestamptz[])
returns table (o_nodes bigint[], o_jobs bigint[]) language plpgsql
set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare
    n record;
    v_nodes bigint[] := '{}';
    v_beats timestamptz[] := '{}';
    v_orphan bigint;
    v_jobs bigint[] := '{}';
begin
    for n in
        select d.node_id, d.heartbeat_at, d.info
        from windlass.node d join unnest(p_nodes, p_seen) u(node_id, beat)
            on d.node_id = u.node_id and d.heartbeat_at = u.beat
        where d.heartbeat_at < clock_timestamp() - p_lease or d.heartbeat_at > clock_timestamp() + interval '1 second'
        order by d.node_id for update of d skip locked
    loop
        begin
            delete from windlass.node d where d.node_id = n.node_id;
            update windlass.slot s set node_id = null, free_at = n.heartbeat_at + p_quarantine where s.node_id = n.node_id;
            perform windlass.note_left(array[n.info], array[n.heartbeat_at]);
            v_nodes := v_nodes || n.node_id;
            v_beats := v_beats || n.heartbeat_at;
        exception when lock_not_available then
            null;
        end;
    end loop;
    -- A claim that was under way while its node was declared dead leaves a lease that nobody renews.
    for v_orphan in
        select distinct l.node_id from windlass.lease l
        where not exists (select 1 from windlass.node d where d.node_id = l.node_id) order by 1
    loop
        begin
            v_jobs := v_jobs || windlass.take_back(array[v_orphan], true,
                array[v_beats[array_position(v_nodes, v_orphan)]], p_lease);
        exception
            when lock_not_available then
                null;
            when data_exception or integrity_constraint_violation or program_limit_exceeded then
                raise warning 'windlass: the jobs of node % cannot be taken back: %', v_orphan, sqlerrm;
        end;
    end loop;
    return query select v_nodes, v_jobs;
end $$;
