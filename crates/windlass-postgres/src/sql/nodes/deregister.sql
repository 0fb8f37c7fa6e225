-- Ends a node: its jobs are ready again as they were, its slot is quarantined.
create or replace function windlass.deregister(p_node bigint, p_quarantine interval) returns void language plpgsql
set lock_timeout = '2s' as $$
#variable_conflict use_column
declare
    v_info json;
begin
    delete from windlass.node d where d.node_id = p_node returning d.info into v_info;
    perform windlass.note_left(array[v_info], array[clock_timestamp()]);
    perform windlass.take_back(array[p_node], false);
    update windlass.slot s set node_id = null, free_at = clock_timestamp() + p_quarantine where s.node_id = p_node;
end $$;
