-- Passes on the ordering keys of jobs that have ended, each to the next in order of submission. Run after the end has committed, in
-- a transaction of its own: someone who is just submitting with the key holds its row, and must not hold up a finish.
-- What could not be locked in time is left to open_gates. Answers how many jobs became ready or scheduled.
create or replace function windlass.pass_on_keys(p_tenants uuid[], p_keys text[]) returns int language plpgsql
set enable_seqscan = off set jit = off set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare
    k record;
    h record;
    g record;
    v_opened int := 0;
begin
    for k in select distinct u.tenant_id, u.ordering_key collate "C" as ordering_key
             from unnest(p_tenants, p_keys) u(tenant_id, ordering_key) order by 1, 2 loop
        begin
            select d.id into h from windlass.key_holder d
            where d.tenant_id = k.tenant_id and d.ordering_key = k.ordering_key for update;
            continue when not found;
            -- Only now, with the row locked, is what these statements see current.
            continue when not exists (select 1 from windlass.outcome o where o.id = h.id)
                and exists (select 1 from windlass.job j where j.id = h.id);
            loop
                select d.* into g from windlass.gated d
                where d.gate = 'key:' || k.ordering_key and d.tenant_id = k.tenant_id
                order by d.gate, d.tenant_id, d.created_at, d.id limit 1 for update;
                if not found then
                    delete from windlass.key_holder d
                    where d.tenant_id = k.tenant_id and d.ordering_key = k.ordering_key;
                    exit;
                end if;
                delete from windlass.gated d where d.id = g.id;
                v_opened := v_opened + 1;
                if g.run_at > clock_timestamp() then
                    insert into windlass.scheduled (run_at, id, tenant_id, kind, rank, failed, recoveries, resumed, queue)
                    values (g.run_at, g.id, g.tenant_id, 1, g.rank, g.failed, g.recoveries, g.resumed, g.queue);
                else
                    perform windlass.make_ready(array[g.id], array[g.queue], array[g.rank], array[g.tenant_id],
                        array[g.failed], array[g.recoveries], array[g.resumed], false);
                end if;
                -- A job that was parked behind a key that is not its own goes on without holding it.
                if exists (select 1 from windlass.job j where j.id = g.id and j.ordering_key = k.ordering_key) then
                    update windlass.key_holder d set id = g.id
                    where d.tenant_id = k.tenant_id and d.ordering_key = k.ordering_key;
                    exit;
                end if;
            end loop;
        exception when lock_not_available then
            null;
        end;
    end loop;
    return v_opened;
end $$;

-- The same, for the keys of these jobs.
create or replace function windlass.pass_on(p_ids bigint[]) returns int language sql as
$$ select windlass.pass_on_keys(array_agg(j.tenant_id), array_agg(j.ordering_key))
   from unnest(p_ids) x(id)
   cross join lateral (select tenant_id, ordering_key from windlass.job where job.id = x.id offset 0) j
   where j.ordering_key is not null $$;
