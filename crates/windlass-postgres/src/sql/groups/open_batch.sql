-- Creates a batch, unless the tenant has one with its key or p_max that are not completed. Answers its id; null if there are
-- too many.
create or replace function windlass.open_batch(
    p_id bigint, p_tenant uuid, p_name text, p_key text, p_callback json, p_max int
) returns bigint language plpgsql as $$
#variable_conflict use_column
declare
    v_id bigint;
begin
    -- Whoever opens with the same key at the same time waits, and finds this one.
    for i in 1..5 loop
        select b.id into v_id from windlass.batch b where b.tenant_id = p_tenant and b.key = p_key;
        if found then
            return v_id;
        end if;
        if (select count(*) from (select 1 from windlass.batch b where b.tenant_id = p_tenant and b.completed_at is null
                                  limit p_max) u) >= p_max then
            return null;
        end if;
        insert into windlass.batch (id, tenant_id, name, key, callback) values (p_id, p_tenant, p_name, p_key, p_callback)
        on conflict (tenant_id, key) where key is not null do nothing;
        if found then
            return p_id;
        end if;
    end loop;
    return null;
end $$;
