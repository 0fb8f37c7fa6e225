-- When handlers and queues p_asked were last served, after noting that p_served are; notes are kept for p_keep.
create or replace function windlass.last_served(p_served text[], p_asked text[], p_keep interval) returns setof timestamptz
language plpgsql set lock_timeout = '500ms' as $$
#variable_conflict use_column
begin
    delete from windlass.served s where s.name = any (array(
        select o.name from windlass.served o where o.at < clock_timestamp() - p_keep for update skip locked));
    insert into windlass.served as s (name, at)
    select distinct n.name, clock_timestamp() from unnest(p_served) n(name) order by n.name
    on conflict (name) do update set at = greatest(s.at, excluded.at);
    return query
    select case when exists (select 1 from windlass.node d where a.name in (select windlass.handlers_of(d.info)))
                then clock_timestamp() else s.at end
    from unnest(p_asked) with ordinality a(name, n) left join windlass.served s on s.name = a.name order by a.n;
end $$;
