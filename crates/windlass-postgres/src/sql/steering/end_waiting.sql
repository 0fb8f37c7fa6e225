-- Ends a job that waits, whose place the caller has emptied.
create or replace function windlass.end_waiting(
    p_id bigint, p_tenant uuid, p_spec json, p_failed integer, p_recoveries integer, p_reason text, p_note text
) returns void language plpgsql as $$
#variable_conflict use_column
declare
    v_now timestamptz := clock_timestamp();
    v_purge_at timestamptz := windlass.gone_at(v_now, windlass.keep_of(p_spec));
begin
    insert into windlass.outcome (id, finished_at, purge_at, status, attempt, failed, recoveries, reason, note)
    values (p_id, v_now, v_purge_at, 7, p_failed + p_recoveries, p_failed, p_recoveries, p_reason, p_note)
    -- A place that something else has written for a job that has ended; the caller has emptied it.
    on conflict do nothing;
    if not found then
        return;
    end if;
    insert into windlass.counter_delta (tenants, statuses, counts, untils)
    values (array[p_tenant], array[7], array[1], array[v_purge_at]);
    delete from windlass.checkpoint c where c.id = p_id;
    perform windlass.count_member(p_id, p_spec, 7::smallint, 1);
    perform windlass.note_feed(array[p_id], 7, array[p_failed + p_recoveries]);
end $$;
