-- Gives a sequence to at most p_limit costs that have none. One at a time, until its transaction has ended: so a higher
-- sequence is never seen before a lower one.
create or replace function windlass.publish_usage(p_limit int) returns void language plpgsql as $$
#variable_conflict use_column
begin
    if not exists (select 1 from windlass.usage_event e where e.sequence is null) then
        return;
    end if;
    perform pg_advisory_xact_lock(7238934417284650002);
    update windlass.usage_event e set sequence = s.sequence
    from (select d.n, nextval('windlass.usage_seq') as sequence
          from (select c.n from windlass.usage_event c where c.sequence is null order by c.n limit p_limit) d) s
    where e.n = s.n;
end $$;
