-- Whether tenants may submit so many jobs and bytes more; counts them in if so. Answers null, or what is exceeded.
-- p_lock: the tenant's row is held until the transaction ends, and the bound is exact. Without (inside someone's own
-- transaction, which may take long) the count is added by a row of its own, and only what has been committed is seen.
-- p_stored: the jobs are in the tables already. Without p_enforce nothing is refused.
create or replace function windlass.admit(
    p_tenants uuid[], p_jobs bigint[], p_bytes bigint[], p_lock boolean, p_stored boolean, p_enforce boolean
) returns json language plpgsql
set jit = off as $$
#variable_conflict use_column
declare
    t record;
    q record;
    u record;
    v_now timestamptz := clock_timestamp();
    v_jobs bigint; v_bytes bigint; v_ended bigint; v_tokens float8; v_counted timestamptz; v_cost bigint;
    v_own_jobs bigint; v_own_bytes bigint; v_more_jobs bigint; v_more_bytes bigint;
    v_began timestamptz;
    v_over json;
    v_done uuid[] := '{}';
begin
    for t in select * from unnest(p_tenants, p_jobs, p_bytes) t(tenant_id, jobs, bytes) where t.jobs > 0
             order by t.tenant_id loop
        select * into q from windlass.quota_of(t.tenant_id);
        continue when not found or (q.queued is null and q.rate is null and q.bytes is null);
        if not p_lock then
            insert into windlass.tenant_use_delta (tenant_id, jobs, bytes) values (t.tenant_id, t.jobs, t.bytes);
            continue when not p_enforce;
        end if;
        v_own_jobs := case when p_stored then t.jobs else 0 end;
        v_own_bytes := case when p_stored then t.bytes else 0 end;
        if p_lock then
            select * into u from windlass.tenant_use w where w.tenant_id = t.tenant_id for update;
            if not found then
                -- Deltas that are visible belong to jobs that are counted here: one statement, one snapshot.
                with x as (delete from windlass.tenant_use_delta e where e.tenant_id = t.tenant_id)
                insert into windlass.tenant_use (tenant_id, jobs, ended, bytes, tokens, filled_at)
                select t.tenant_id, (select count(*) from windlass.unfinished_of(t.tenant_id)) - v_own_jobs,
                       windlass.ended_of(t.tenant_id),
                       case when q.bytes is null then 0 else windlass.unfinished_bytes(t.tenant_id) - v_own_bytes end,
                       coalesce(q.burst, 0), v_now
                on conflict do nothing;
                select * into u from windlass.tenant_use w where w.tenant_id = t.tenant_id for update;
            end if;
            with x as (delete from windlass.tenant_use_delta e where e.tenant_id = t.tenant_id returning e.jobs, e.bytes)
            select coalesce(sum(x.jobs), 0), coalesce(sum(x.bytes), 0) into v_more_jobs, v_more_bytes from x;
        else
            select * into u from windlass.tenant_use w where w.tenant_id = t.tenant_id;
            if found then
                select coalesce(sum(e.jobs), 0) - t.jobs, coalesce(sum(e.bytes), 0) - t.bytes
                into v_more_jobs, v_more_bytes from windlass.tenant_use_delta e where e.tenant_id = t.tenant_id;
            else
                -- Maintenance makes the row soon.
                select t.tenant_id as tenant_id, (select count(*) from windlass.unfinished_of(t.tenant_id)) - v_own_jobs as jobs,
                       windlass.ended_of(t.tenant_id) as ended,
                       case when q.bytes is null then 0
                            else windlass.unfinished_bytes(t.tenant_id) - v_own_bytes end as bytes,
                       null::timestamptz as counted_at, 0::bigint as counted_us, coalesce(q.burst, 0)::float8 as tokens,
                       v_now as filled_at
                into u;
                select 0, 0 into v_more_jobs, v_more_bytes;
            end if;
        end if;
        v_jobs := u.jobs + v_more_jobs;
        v_bytes := u.bytes + v_more_bytes;
        v_ended := u.ended;
        v_counted := u.counted_at;
        v_cost := u.counted_us;
        v_tokens := least(coalesce(q.burst, 0), u.tokens - v_more_jobs
            + coalesce(q.rate, 0) * greatest(0, extract(epoch from v_now - u.filled_at)));
        if p_enforce and v_over is null then
            if v_jobs + t.jobs > q.queued then
                v_ended := windlass.ended_of(t.tenant_id);
                v_jobs := v_jobs - (v_ended - u.ended);
                if v_jobs + t.jobs > q.queued then
                    v_over := json_build_object('tenant', t.tenant_id, 'quota', 'queued', 'limit', q.queued,
                        'room', greatest(0, q.queued - v_jobs));
                end if;
            end if;
            if v_over is null and v_bytes + t.bytes > q.bytes then
                -- Counting may take a twentieth of the time; a quick count is made whenever it is wanted.
                if v_cost < 5000 or v_counted is null or v_now > v_counted + v_cost * 20 * interval '1 microsecond' then
                    v_began := clock_timestamp();
                    v_bytes := windlass.unfinished_bytes(t.tenant_id) - v_own_bytes;
                    v_counted := clock_timestamp();
                    v_cost := extract(epoch from v_counted - v_began) * 1000000;
                end if;
                if v_bytes + t.bytes > q.bytes then
                    v_over := json_build_object('tenant', t.tenant_id, 'quota', 'bytes', 'limit', q.bytes,
                        'room', greatest(0, q.bytes - v_bytes));
                end if;
            end if;
            if v_over is null and q.rate is not null and t.jobs - v_tokens > 1e-6 then
                v_over := json_build_object('tenant', t.tenant_id, 'quota', 'submit_rate', 'limit', q.burst,
                    'room', greatest(0, floor(v_tokens + 1e-6))::bigint,
                    'retry_after_us', case when t.jobs <= q.burst
                                           then ceil((t.jobs - v_tokens) / q.rate * 1000000)::bigint end);
            end if;
        end if;
        if p_lock then
            -- What was learnt is kept, whatever the answer; the jobs themselves are added below, for all or for none.
            update windlass.tenant_use w set jobs = v_jobs, ended = v_ended, bytes = v_bytes, counted_at = v_counted,
                   counted_us = v_cost, tokens = v_tokens, filled_at = v_now
            where w.tenant_id = t.tenant_id;
            v_done := v_done || t.tenant_id;
        end if;
    end loop;
    if v_over is null and v_done <> '{}' then
        update windlass.tenant_use w set jobs = w.jobs + t.jobs, bytes = w.bytes + t.bytes, tokens = w.tokens - t.jobs
        from unnest(p_tenants, p_jobs, p_bytes) t(tenant_id, jobs, bytes)
        where w.tenant_id = t.tenant_id and w.tenant_id = any (v_done);
    end if;
    return v_over;
end $$;

-- Counts jobs that have just been stored, and raises where a quota does not allow them.
create or replace function windlass.admit_stored(p_ids bigint[], p_lock boolean, p_enforce boolean) returns void language plpgsql as $$
#variable_conflict use_column
declare
    v_tenants uuid[]; v_jobs bigint[]; v_bytes bigint[];
begin
    if cardinality(p_ids) = 0 or not exists (select 1 from windlass.quota) then
        return;
    end if;
    select array_agg(s.tenant_id), array_agg(s.jobs), array_agg(s.bytes) into v_tenants, v_jobs, v_bytes
    from (select j.tenant_id, count(*) as jobs, sum(j.bytes) as bytes from unnest(p_ids) u(id)
          cross join lateral (select tenant_id, octet_length(payload::text) as bytes from windlass.job
                              where job.id = u.id offset 0) j
          group by j.tenant_id) s;
    perform windlass.refuse_over_quota(windlass.admit(v_tenants, v_jobs, v_bytes, p_lock, true, p_enforce));
end $$;

-- Raises what `admit` answered. The state WQ001 is ours: a quota is exceeded; the detail is JSON.
create or replace function windlass.refuse_over_quota(p_over json) returns void language plpgsql as $$
#variable_conflict use_column
begin
    if p_over is not null then
        raise exception 'windlass: tenant % is over its quota of % (%)', p_over ->> 'tenant', p_over ->> 'quota',
            p_over ->> 'limit' using errcode = 'WQ001', detail = p_over::text;
    end if;
end $$;
