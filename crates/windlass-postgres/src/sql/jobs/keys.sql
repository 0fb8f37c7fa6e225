-- Keys longer than an index row allows are kept as a hash beside their beginning.
create or replace function windlass.stored_key(p_key text) returns text language sql immutable as
$$ select case when octet_length(p_key) <= 512 then p_key
               else left(p_key, 64) || '#' || encode(sha256(convert_to(p_key, 'UTF8')), 'hex') end $$;

-- Takes a key for job p_id. Answers who has it: p_id itself, or the job that holds it. `p_batch` are earlier jobs of the
-- same call that will be stored: their rows are not there yet, and they count as alive.
create or replace function windlass.take_key(
    p_kind "char", p_tenant uuid, p_scope text, p_key text, p_id bigint, p_until timestamptz, p_batch bigint[]
) returns bigint language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_holder record;
    v_ended record;
    v_free boolean;
begin
    -- Each round is a new look: the winner of a race may have committed after the insert's own snapshot.
    for i in 1..20 loop
        insert into windlass.job_key (kind, tenant_id, scope, key, id, until)
        values (p_kind, p_tenant, p_scope, p_key, p_id, p_until) on conflict do nothing;
        if found then
            return p_id;
        end if;
        select k.id, k.until into v_holder from windlass.job_key k
        where k.kind = p_kind and k.tenant_id = p_tenant and k.scope = p_scope and k.key = p_key for update;
        continue when not found;
        if v_holder.id = p_id or v_holder.id = any (p_batch) then
            return v_holder.id;
        end if;
        if p_kind = 'u' and v_holder.until is not null then
            v_free := v_holder.until <= clock_timestamp();
        else
            select o.purge_at into v_ended from windlass.outcome o where o.id = v_holder.id;
            if found then
                v_free := p_kind = 'u' or v_ended.purge_at <= clock_timestamp();
            else
                v_free := not exists (select 1 from windlass.job j where j.id = v_holder.id);
            end if;
        end if;
        if v_free is not true then
            return v_holder.id;
        end if;
        update windlass.job_key k set id = p_id, until = p_until
        where k.kind = p_kind and k.tenant_id = p_tenant and k.scope = p_scope and k.key = p_key;
        return p_id;
    end loop;
    raise exception 'windlass: the key % changes hands too fast', p_key using errcode = '40001';
end $$;

-- The keys of jobs given as JSON, with the place of their job.
create or replace function windlass.keys_of(p_jobs json, p_now timestamptz)
returns table (n int, kind "char", tenant uuid, scope text, key text, until timestamptz) language sql stable as
$$ select e.n::int, 'i'::"char", coalesce((e.v ->> 'tenant')::uuid, '00000000-0000-0000-0000-000000000000'),
          e.v ->> 'handler', windlass.stored_key(e.v ->> 'idempotency_key'), null::timestamptz
   from json_array_elements(p_jobs) with ordinality e(v, n) where e.v ->> 'idempotency_key' is not null
   union all
   select e.n::int, 'u'::"char", coalesce((e.v ->> 'tenant')::uuid, '00000000-0000-0000-0000-000000000000'),
          '', windlass.stored_key(e.v -> 'unique' ->> 'key'),
          case when json_typeof(e.v -> 'unique' -> 'within') = 'object' then p_now
               + least((e.v -> 'unique' -> 'within' ->> 'window')::numeric, 3e12)::float8 * interval '1 ms' end
   from json_array_elements(p_jobs) with ordinality e(v, n) where e.v -> 'unique' ->> 'key' is not null $$;
