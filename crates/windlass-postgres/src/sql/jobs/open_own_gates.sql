-- Jobs just parked behind an ordering key that nobody else holds are ready at once.
create or replace function windlass.open_own_gates(p_ids bigint[]) returns void language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    g record;
    v_holder bigint;
begin
    for g in select * from windlass.gated d where d.id = any (p_ids) and d.gate like 'key:%'
             order by d.tenant_id, d.gate, d.id loop
        select k.id into v_holder from windlass.key_holder k
        where k.tenant_id = g.tenant_id and k.ordering_key = substr(g.gate, 5) for update;
        if not found or v_holder = g.id then
            delete from windlass.gated d where d.id = g.id;
            perform windlass.make_ready(array[g.id], array[g.queue], array[g.rank], array[g.tenant_id],
                array[g.failed], array[g.recoveries], array[true], true);
        end if;
    end loop;
end $$;
