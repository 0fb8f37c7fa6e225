-- Adds part p_part with its jobs, given as JSON. Codes: 0 added, 1 added before, -1 there is no such batch, -2 it is sealed.
create or replace function windlass.add_part(p_tenant uuid, p_batch bigint, p_part bigint, p_jobs json)
returns table (o_code int, o_jobs bigint, o_ids bigint[], o_duplicate boolean[]) language plpgsql as $$
#variable_conflict use_column
declare
    v_sealed timestamptz;
begin
    -- Shared: parts are added side by side, and only a seal waits for them.
    select b.sealed_at into v_sealed from windlass.batch b where b.id = p_batch and b.tenant_id = p_tenant for share;
    if not found then
        o_code := -1;
        return next;
        return;
    end if;
    select p.jobs into o_jobs from windlass.batch_part p where p.batch_id = p_batch and p.part = p_part;
    if found then
        o_code := 1;
        return next;
        return;
    elsif v_sealed is not null then
        o_code := -2;
        return next;
        return;
    end if;
    insert into windlass.batch_part (batch_id, part, jobs) values (p_batch, p_part, 0) on conflict do nothing;
    if not found then
        -- Somebody else has added it meanwhile.
        select p.jobs into o_jobs from windlass.batch_part p where p.batch_id = p_batch and p.part = p_part;
        o_code := 1;
        return next;
        return;
    end if;
    select array_agg(s.id), array_agg(s.duplicate) into o_ids, o_duplicate
    from windlass.store_jobs_within(p_jobs, true, true) s;
    select count(*) into o_jobs from unnest(o_duplicate) d(duplicate) where not d.duplicate;
    update windlass.batch_part p set jobs = o_jobs where p.batch_id = p_batch and p.part = p_part;
    o_code := 0;
    return next;
end $$;

-- Seals a batch. False if the tenant has none with this id.
create or replace function windlass.seal_batch(p_tenant uuid, p_batch bigint) returns boolean language plpgsql as $$
#variable_conflict use_column
begin
    perform 1 from windlass.batch b where b.id = p_batch and b.tenant_id = p_tenant for update;
    if not found then
        return false;
    end if;
    -- Only now, with the row locked, are all parts there that were being added.
    update windlass.batch b
    set sealed_at = clock_timestamp(),
        total = (select coalesce(sum(p.jobs), 0) from windlass.batch_part p where p.batch_id = p_batch)
    where b.id = p_batch and b.sealed_at is null;
    return true;
end $$;
