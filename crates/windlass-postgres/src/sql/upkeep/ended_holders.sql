-- The holders of ordering keys from p_from on whose job has ended, at most so many rows looked at.
create or replace function windlass.ended_holders(p_tenant uuid, p_key text, p_scan int)
returns table (o_tenants uuid[], o_keys text[], o_last_tenant uuid, o_last_key text, o_scanned int) language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
begin
    return query
    with k as materialized (
        select h.tenant_id, h.ordering_key, h.id from windlass.key_holder h
        where (h.tenant_id, h.ordering_key) > (p_tenant, p_key collate "C")
        order by h.tenant_id, h.ordering_key limit p_scan),
    e as (select k.* from k
          where exists (select 1 from windlass.outcome o where o.id = k.id)
             or not exists (select 1 from windlass.job j where j.id = k.id))
    select (select array_agg(e.tenant_id) from e), (select array_agg(e.ordering_key::text) from e),
           (select k.tenant_id from k order by k.tenant_id desc, k.ordering_key desc limit 1),
           (select k.ordering_key::text from k order by k.tenant_id desc, k.ordering_key desc limit 1),
           (select count(*)::int from k);
end $$;
