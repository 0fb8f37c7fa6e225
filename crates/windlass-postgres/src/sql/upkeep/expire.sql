-- Cancels waiting jobs that have expired, at most p_limit. Answers how many.
-- A job whose place somebody holds is left for the next time.
create or replace function windlass.expire(p_limit int) returns int language plpgsql set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare
    x record;
    j record;
    w record;
    v_expired int := 0;
    v_ids bigint[] := '{}';
begin
    for x in
        delete from windlass.expiry e where e.ctid = any (array(
            select f.ctid from windlass.expiry f where f.at <= clock_timestamp()
            order by f.at limit p_limit for update skip locked))
        returning e.id, e.at
    loop
        select d.tenant_id, d.spec into j from windlass.job d where d.id = x.id;
        continue when not found;
        begin
            -- One that runs now has started in time; if it comes back without having begun, `finish` notes it again.
            w := windlass.take_waiting(x.id, j.tenant_id, true);
            continue when w.o_failed is null;
            perform windlass.end_waiting(x.id, j.tenant_id, j.spec, w.o_failed, w.o_recoveries, 'expired', null);
            v_expired := v_expired + 1;
            v_ids := v_ids || x.id;
        exception when lock_not_available then
            insert into windlass.expiry (at, id) values (x.at, x.id);
        end;
    end loop;
    if v_expired > 0 then
        perform windlass.pass_on(v_ids);
    end if;
    return v_expired;
end $$;
