-- Removes buckets whose time is over, at most p_limit rows. Answers how many.
create or replace function windlass.clean_activity(p_resolutions smallint[], p_keep float8[], p_limit int) returns int
language plpgsql set enable_seqscan = off set lock_timeout = '500ms' as $$
#variable_conflict use_column
declare
    -- Read once: compared with the clock itself, every row would be looked at.
    v_now timestamptz := clock_timestamp();
    v_removed int; v_depths int;
begin
    perform set_config('synchronous_commit', 'off', true);
    delete from windlass.activity a where a.ctid = any (array(
        select o.place from unnest(p_resolutions, p_keep) r(seconds, keep)
        cross join lateral (select b.ctid as place from windlass.activity b
                            where b.resolution = r.seconds and b.at < v_now - make_interval(secs => r.keep)
                            order by b.resolution, b.at limit p_limit for update skip locked) o
        limit p_limit));
    get diagnostics v_removed = row_count;
    delete from windlass.depth d using unnest(p_resolutions, p_keep) r(seconds, keep)
    where d.resolution = r.seconds and d.at < v_now - make_interval(secs => r.keep);
    get diagnostics v_depths = row_count;
    return least(v_removed + v_depths, p_limit);
end $$;
