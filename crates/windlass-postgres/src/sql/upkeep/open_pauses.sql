-- Makes jobs ready that were parked by a pause that is over.
create or replace function windlass.open_pauses(p_limit int) returns int language plpgsql
set enable_seqscan = off set jit = off set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare
    v_gate text := 'pause:';
    v_opened int := 0;
    r record;
begin
    loop
        select g.gate into v_gate from windlass.gated g
        where g.gate > v_gate collate "C" and g.gate < 'pause;' order by g.gate limit 1;
        exit when not found or v_opened >= p_limit;
        continue when exists (select 1 from windlass.pause p where 'pause:' || p.target = v_gate);
        with d as (
            delete from windlass.gated g where g.ctid = any (array(
                select h.ctid from windlass.gated h where h.gate = v_gate collate "C"
                order by h.gate, h.tenant_id, h.created_at, h.id limit p_limit - v_opened for update skip locked))
            returning g.*),
        o as (select * from d order by d.created_at, d.id)
        select array_agg(o.id) as ids, array_agg(o.queue) as queues, array_agg(o.rank) as ranks,
               array_agg(o.tenant_id) as tenants, array_agg(o.failed) as failed,
               array_agg(o.recoveries) as recoveries, array_agg(o.resumed) as resumed
        into r from o;
        if r.ids is not null then
            v_opened := v_opened + windlass.make_ready(r.ids, r.queues, r.ranks, r.tenants, r.failed, r.recoveries,
                r.resumed, false, true);
        end if;
    end loop;
    return v_opened;
end $$;
