-- Removes ended jobs whose time is over among the next p_scan outcomes after p_from, at most p_limit.
create or replace function windlass.clean(p_from bigint, p_scan int, p_limit int)
returns table (o_removed int, o_last bigint, o_scanned int) language plpgsql
set enable_seqscan = off set jit = off set lock_timeout = '500ms' as $$
#variable_conflict use_column
declare
    v_ids bigint[]; v_last bigint; v_scanned int;
begin
    perform set_config('synchronous_commit', 'off', true);
    select array_agg(s.id order by s.id) filter (where s.purge_at <= clock_timestamp()), max(s.id), count(*)
    into v_ids, v_last, v_scanned
    from (select o.id, o.purge_at from windlass.outcome o where o.id > p_from order by o.id limit p_scan) s;
    if cardinality(v_ids) > p_limit then
        v_ids := v_ids[1:p_limit];
        v_last := v_ids[p_limit];
    end if;
    if v_ids is not null then
        -- Another cleaner may be at the same rows: only what is locked here is removed and counted here.
        v_ids := array(select o.id from windlass.outcome o where o.id = any (v_ids) and o.purge_at <= clock_timestamp()
                       for update skip locked);
        -- And what somebody holds of a job keeps that one.
        v_ids := array(select j.id from windlass.job j where j.id = any (v_ids) for update skip locked)
              || array(select u.id from unnest(v_ids) u(id) where not exists (select 1 from windlass.job j where j.id = u.id));
        perform windlass.remove_jobs(v_ids);
    end if;
    return query select coalesce(cardinality(v_ids), 0), v_last, v_scanned;
end $$;
