-- Forgets costs that are too old, at most p_limit of each kind.
create or replace function windlass.clean_usage(p_events bigint, p_days int, p_limit int) returns void language plpgsql as $$
#variable_conflict use_column
begin
    delete from windlass.usage_event e where e.n = any (array(
        select d.n from windlass.usage_event d where d.at <= clock_timestamp() - p_events * interval '1 microsecond'
        order by d.at limit p_limit for update skip locked));
    delete from windlass.usage u where u.ctid = any (array(
        select d.ctid from windlass.usage d
        where d.day < (clock_timestamp() at time zone 'UTC')::date - p_days
        order by d.day limit p_limit for update skip locked));
end $$;
