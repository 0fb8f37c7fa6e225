-- What tenants may use and use. In the lock order, tenant_use (by tenant) comes last.

-- Policies. The default one, for every tenant without its own, has the key of ones.
create table windlass.quota (
    tenant_id uuid not null primary key,
    weight integer,
    queued bigint,
    rate double precision,                           -- tokens a second
    burst bigint,
    running bigint,
    bytes bigint
);
-- Counts changes, so that nodes see with one look whether they know the policies.
create table windlass.quota_version (n bigint not null);
insert into windlass.quota_version (n) values (0);

-- What is counted for tenants whose submits are limited. `jobs` minus what has ended since `ended` are unfinished.
create table windlass.tenant_use (
    tenant_id uuid not null primary key,
    jobs bigint not null,
    ended bigint not null,                           -- the tenant's ended jobs when `jobs` was right
    bytes bigint not null,                           -- of unfinished payloads, at most: an end takes nothing off
    counted_at timestamptz,                          -- when bytes were last counted, and how long that took
    counted_us bigint not null default 0,
    tokens double precision not null,
    filled_at timestamptz not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- What was stored inside someone's own transaction, which must not hold the tenant's row until it ends. Folded in by the
-- next submit that holds the row.
create table windlass.tenant_use_delta (
    tenant_id uuid not null,
    jobs bigint not null,
    bytes bigint not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index tenant_use_delta_tenant on windlass.tenant_use_delta (tenant_id);

-- Whose jobs a part of a lease holds, where that tenant's running jobs are limited: then they are counted by it.
alter table windlass.lease add column tenant_id uuid;
create index lease_tenant on windlass.lease (tenant_id) where tenant_id is not null;

-- The policy that holds for a tenant.
create function windlass.quota_of(p_tenant uuid) returns setof windlass.quota language sql stable as
$$ select * from windlass.quota q
   where q.tenant_id in (p_tenant, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
   order by q.tenant_id = p_tenant desc limit 1 $$;

create function windlass.set_quota(p_tenant uuid, p_policy json, p_by text) returns void language plpgsql as $$
#variable_conflict use_column
declare
    v_key uuid := coalesce(p_tenant, 'ffffffff-ffff-ffff-ffff-ffffffffffff');
begin
    -- One change after the other.
    update windlass.quota_version v set n = v.n + 1;
    delete from windlass.quota q where q.tenant_id = v_key;
    if p_policy is not null then
        insert into windlass.quota (tenant_id, weight, queued, rate, burst, running, bytes)
        values (v_key, (p_policy ->> 'weight')::int, (p_policy ->> 'queued')::bigint,
                (p_policy -> 'submit_rate' ->> 'per_second')::float8, (p_policy -> 'submit_rate' ->> 'burst')::bigint,
                (p_policy ->> 'running')::bigint, (p_policy ->> 'bytes')::bigint);
    end if;
    -- What was not limited was not counted: the next submit counts anew.
    delete from windlass.tenant_use u where p_tenant is null or u.tenant_id = p_tenant;
    delete from windlass.tenant_use_delta u where p_tenant is null or u.tenant_id = p_tenant;
    insert into windlass.audit (tenant_id, actor, action, target, detail)
    values (p_tenant, p_by, case when p_policy is null then 'QUOTA_CLEARED' else 'QUOTA_SET' end,
            coalesce('tenant:' || p_tenant, 'default'), p_policy::text);
end $$;

-- A tenant's jobs that have ended, ever. One statement, so that a fold under way is seen whole or not at all.
create function windlass.ended_of(p_tenant uuid) returns bigint language sql stable as
$$ select coalesce((select sum(c.n) from windlass.counter c where c.tenant_id = p_tenant), 0)::bigint
        + coalesce((select sum(u.n) from windlass.counter_delta d
                    cross join unnest(d.tenants, d.counts) u(tenant_id, n)
                    where d.tenants @> array[p_tenant] and u.tenant_id = p_tenant), 0)::bigint $$;

-- The ids of a tenant's unfinished jobs. Reads the live tables whole: no index leads from a tenant to its jobs there.
create function windlass.unfinished_of(p_tenant uuid) returns setof bigint language sql stable as
$$ select x.id from windlass.ready r cross join unnest(r.ids) x(id) where r.tenant_id = p_tenant
   union all select s.id from windlass.scheduled s where s.tenant_id = p_tenant
   union all select g.id from windlass.gated g where g.tenant_id = p_tenant
   union all select x.id from windlass.lease l cross join unnest(l.ids) x(id)
             cross join lateral (select tenant_id from windlass.job where job.id = x.id offset 0) j
             where j.tenant_id = p_tenant $$;

create function windlass.unfinished_bytes(p_tenant uuid) returns bigint language sql stable as
$$ select coalesce(sum(j.bytes), 0)::bigint from windlass.unfinished_of(p_tenant) u(id)
   cross join lateral (select octet_length(payload::text) as bytes from windlass.job where job.id = u.id offset 0) j $$;

-- Whether tenants may submit so many jobs and bytes more; counts them in if so. Answers null, or what is exceeded.
-- p_lock: the tenant's row is held until the transaction ends, and the bound is exact. Without (inside someone's own
-- transaction, which may take long) the count is added by a row of its own, and only what has been committed is seen.
-- p_stored: the jobs are in the tables already. Without p_enforce nothing is refused.
create function windlass.admit(
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

-- Raises what `admit` answered. The state WQ001 is ours: a quota is exceeded; the detail is JSON.
create function windlass.refuse_over_quota(p_over json) returns void language plpgsql as $$
#variable_conflict use_column
begin
    if p_over is not null then
        raise exception 'windlass: tenant % is over its quota of % (%)', p_over ->> 'tenant', p_over ->> 'quota',
            p_over ->> 'limit' using errcode = 'WQ001', detail = p_over::text;
    end if;
end $$;

-- The library's fast path for tenants whose submits are limited. Answers null, or what is exceeded.
create function windlass.submit_plain_within(
    p_use_tenants uuid[], p_use_jobs bigint[], p_use_bytes bigint[],
    p_node bigint, p_lease bigint, p_now int,
    p_ids bigint[], p_tenants uuid[], p_handlers text[], p_queues text[], p_priorities smallint[], p_payloads json[],
    p_run_at timestamptz[], p_delays bigint[], p_batches bigint[], p_correlations text[], p_tags json[], p_specs json[],
    p_chunk_queues text[], p_chunk_ranks smallint[], p_chunk_tenants uuid[], p_chunk_positions bigint[],
    p_chunk_from int[], p_chunk_to int[]
) returns json language plpgsql as $$
#variable_conflict use_column
declare
    v_over json := windlass.admit(p_use_tenants, p_use_jobs, p_use_bytes, true, false, true);
begin
    if v_over is null then
        perform windlass.submit_plain(p_node, p_lease, p_now, p_ids, p_tenants, p_handlers, p_queues, p_priorities,
            p_payloads, p_run_at, p_delays, p_batches, p_correlations, p_tags, p_specs, p_chunk_queues, p_chunk_ranks,
            p_chunk_tenants, p_chunk_positions, p_chunk_from, p_chunk_to);
    end if;
    return v_over;
end $$;

-- Counts jobs that have just been stored, and raises where a quota does not allow them.
create function windlass.admit_stored(p_ids bigint[], p_lock boolean, p_enforce boolean) returns void language plpgsql as $$
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

-- Jobs of any kind, within the quotas. What is stored already needs no room, so they are counted after the store, and a
-- refusal undoes the call.
create function windlass.submit_jobs_within(p_jobs json, p_lock boolean default false, p_enforce boolean default true)
returns table (id bigint, duplicate boolean) language plpgsql as $$
#variable_conflict use_column
declare
    v_ids bigint[]; v_duplicate boolean[];
begin
    select array_agg(s.id), array_agg(s.duplicate) into v_ids, v_duplicate from windlass.submit_jobs(p_jobs) s;
    perform windlass.admit_stored(
        array(select u.id from unnest(v_ids, v_duplicate) u(id, duplicate) where not u.duplicate), p_lock, p_enforce);
    return query select u.id, u.duplicate from unnest(v_ids, v_duplicate) u(id, duplicate);
end $$;

-- How many more jobs of a tenant may run; null without a limit. Where another claim is about to start some of them, none:
-- that one decides.
create function windlass.running_room(p_tenant uuid) returns bigint language plpgsql
set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_cap bigint := (select q.running from windlass.quota_of(p_tenant) q);
begin
    if v_cap is null then
        return null;
    elsif not pg_try_advisory_xact_lock(7238934, hashtext(p_tenant::text)) then
        return 0;
    end if;
    return greatest(0, v_cap - (select coalesce(sum(cardinality(l.ids)), 0) from windlass.lease l
                                where l.tenant_id = p_tenant));
end $$;

-- Puts right what was stored by processes that had not heard of a quota yet, and makes the rows of tenants that are only
-- counted by deltas. All in one snapshot, in which a job and its count are both there or both not. Answers how many rows.
create function windlass.correct_use() returns int language plpgsql set jit = off as $$
#variable_conflict use_column
declare
    r record;
    v_rows int := 0;
begin
    for r in
        with l as (
            select r.tenant_id, cardinality(r.ids)::bigint as n from windlass.ready r
            union all select s.tenant_id, 1 from windlass.scheduled s
            union all select g.tenant_id, 1 from windlass.gated g
            union all select j.tenant_id, 1 from windlass.lease l cross join unnest(l.ids) x(id)
                      cross join lateral (select tenant_id from windlass.job where job.id = x.id offset 0) j),
        live as (select l.tenant_id, sum(l.n)::bigint as n from l group by 1),
        d as (select e.tenant_id, sum(e.jobs)::bigint as jobs from windlass.tenant_use_delta e group by 1)
        select coalesce(u.tenant_id, d.tenant_id) as tenant_id, u.tenant_id is null as missing,
               coalesce(live.n, 0) as live, windlass.ended_of(coalesce(u.tenant_id, d.tenant_id)) as ended,
               coalesce(live.n, 0) - (u.jobs + coalesce(d.jobs, 0) - (windlass.ended_of(u.tenant_id) - u.ended)) as drift
        from windlass.tenant_use u full join d on d.tenant_id = u.tenant_id
        left join live on live.tenant_id = coalesce(u.tenant_id, d.tenant_id)
        order by 1
    loop
        if r.missing then
            insert into windlass.tenant_use (tenant_id, jobs, ended, bytes, tokens, filled_at)
            select r.tenant_id, r.live - (select coalesce(sum(e.jobs), 0) from windlass.tenant_use_delta e
                                          where e.tenant_id = r.tenant_id),
                   r.ended, windlass.unfinished_bytes(r.tenant_id), coalesce(q.burst, 0), clock_timestamp()
            from windlass.quota_of(r.tenant_id) q on conflict do nothing;
            v_rows := v_rows + 1;
        elsif r.drift <> 0 then
            update windlass.tenant_use u set jobs = u.jobs + r.drift where u.tenant_id = r.tenant_id;
            v_rows := v_rows + 1;
        end if;
    end loop;
    return v_rows;
end $$;
