-- Walls between tenants. Two roles without login: `windlass_engine` owns everything here and sees every tenant by a policy
-- that says so; `windlass_app` reads one tenant, the one that the setting `windlass.tenant` names for a transaction, and
-- nothing where it names none. Row-level security is forced, so that it binds the owner too. `raise_walls` builds all of
-- this and may be called again at any time; where the roles cannot be made, everything works without walls.

-- The tenant that this transaction is for. A setting that was set for one transaction is empty afterwards, not null.
create function windlass.tenant() returns uuid language sql stable as
$$ select nullif(current_setting('windlass.tenant', true), '')::uuid $$;

-- Whether a job is the tenant's: what the policies of tables ask that have no tenant of their own. A function, because its
-- plan is kept: as a part of every statement the weeks of `job` would be planned once for each such table.
create function windlass.is_own(p_id bigint) returns boolean language plpgsql stable
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    return exists (select 1 from windlass.job j where j.id = p_id and j.tenant_id = windlass.tenant());
end $$;

-- Stops a tenant's write to a job that is not its own, before the engine carries it out.
create function windlass.check_own(p_id bigint) returns void language plpgsql stable as $$
#variable_conflict use_column
begin
    if not windlass.is_own(p_id) then
        raise exception 'windlass: job % is not there', p_id using errcode = 'P0002';
    end if;
end $$;

-- A lease and a packed count hold jobs of several tenants in one row, which no policy can divide: nobody but the engine
-- reads those tables. What is the tenant's own comes out through these two functions, which run as the engine and answer
-- for the tenant of the setting alone; without one they answer nothing.
create function windlass.own_running(p_ids bigint[])
returns table (id bigint, node_id bigint, claimed_at timestamptz, failed integer, recoveries integer, canceled boolean)
language plpgsql stable security definer rows 100
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_tenant uuid := windlass.tenant();
begin
    if v_tenant is null then
        return;
    end if;
    return query
    select u.id, l.node_id, l.claimed_at, l.failed, l.recoveries, u.id = any (l.canceled)
    from windlass.lease l cross join unnest(l.ids) u(id)
    cross join lateral (select 1 from windlass.job j where j.id = u.id and j.tenant_id = v_tenant offset 0) j
    where p_ids is null or (u.id in (select w.id from unnest(p_ids) w(id)) and (cardinality(p_ids) > 1 or l.ids @> p_ids));
end $$;

create function windlass.own_deltas() returns table (status smallint, n bigint)
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    v_tenant uuid := windlass.tenant();
begin
    return query
    select u.status, u.n from windlass.counter_delta d
    cross join unnest(d.tenants, d.statuses, d.counts) u(tenant_id, status, n) where u.tenant_id = v_tenant;
end $$;

-- The jobs that run (p_ids: among these), for whoever asks: all of them for those who may read leases, else their own.
create function windlass.running(p_ids bigint[] default null)
returns table (id bigint, node_id bigint, claimed_at timestamptz, failed integer, recoveries integer, canceled boolean)
language plpgsql stable rows 100 set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    if not has_table_privilege('windlass.lease', 'select') then
        return query select * from windlass.own_running(p_ids);
        return;
    end if;
    return query
    select u.id, l.node_id, l.claimed_at, l.failed, l.recoveries, u.id = any (l.canceled)
    from windlass.lease l cross join unnest(l.ids) u(id)
    where p_ids is null or (u.id in (select w.id from unnest(p_ids) w(id)) and (cardinality(p_ids) > 1 or l.ids @> p_ids));
end $$;

-- Counts that are not folded yet, of tenant p_tenant (null for all).
create function windlass.deltas(p_tenant uuid) returns table (status smallint, n bigint)
language plpgsql stable rows 100 as $$
#variable_conflict use_column
begin
    if not has_table_privilege('windlass.counter_delta', 'select') then
        return query select * from windlass.own_deltas();
        return;
    end if;
    return query
    select u.status, u.n from windlass.counter_delta d
    cross join unnest(d.tenants, d.statuses, d.counts) u(tenant_id, status, n)
    where p_tenant is null or u.tenant_id = p_tenant;
end $$;

-- Jobs with where they are, for dashboards and object mappers. Nothing of the payload, the output or the text of an error.
-- With the rights of whoever asks: behind a wall it shows one tenant.
create view windlass.job_status_v with (security_invoker = true) as
select j.id, j.tenant_id, j.handler, j.queue,
       case coalesce(o.status, s.kind, case when g.id is not null then 3 end, case when r.id is not null then 5 end, 0)
            when 0 then 'pending' when 1 then 'scheduled' when 2 then 'retrying' when 3 then 'blocked' when 5 then 'running'
            when 6 then 'succeeded' when 7 then 'canceled' when 8 then 'dead_lettered' end as status,
       j.priority,
       coalesce(o.attempt, s.failed + s.recoveries, g.failed + g.recoveries, r.failed + r.recoveries + 1,
                e.failed + e.recoveries, 0) as attempt,
       j.correlation_id, j.batch_id, j.created_at, coalesce(s.run_at, j.run_at) as run_at,
       coalesce(o.started_at, r.claimed_at, e.started_at) as started_at, o.finished_at,
       coalesce(o.finished_at, r.claimed_at, e.at, j.created_at) as updated_at,
       p.percent as progress, p.message as progress_message,
       coalesce(o.error, e.error) ->> 'code' as error_code, coalesce(o.error, e.error) ->> 'kind' as error_kind,
       coalesce(o.reason, g.gate) as reason
from windlass.job j
left join lateral (select * from windlass.outcome where outcome.id = j.id offset 0) o on true
left join lateral (select * from windlass.scheduled where scheduled.id = j.id offset 0) s on true
left join lateral (select * from windlass.gated where gated.id = j.id offset 0) g on true
-- Asked for only where nothing else tells where the job is.
left join lateral (select * from windlass.running(array[j.id])
                   where o.id is null and s.id is null and g.id is null offset 0) r on true
left join lateral (select * from windlass.progress where progress.id = j.id offset 0) p on true
left join lateral (select * from windlass.event where event.id = j.id order by event.id, seq desc limit 1) e on true
where o.purge_at is null or o.purge_at > clock_timestamp();

-- Whether the walls stand: 'up', or the reason why not.
create function windlass.walls() returns text language plpgsql stable as $$
#variable_conflict use_column
declare
    v_open text;
begin
    if to_regrole('windlass_app') is null or to_regrole('windlass_engine') is null then
        return 'the roles windlass_app and windlass_engine do not exist';
    elsif (select r.rolsuper or r.rolbypassrls from pg_catalog.pg_roles r where r.rolname = 'windlass_app') then
        return 'the role windlass_app is not bound by row-level security';
    elsif pg_has_role('windlass_app', 'windlass_engine', 'member') then
        return 'the role windlass_app is a member of windlass_engine';
    end if;
    select string_agg(c.relname, ', ' order by c.relname) into v_open from pg_catalog.pg_class c
    where c.relnamespace = 'windlass'::regnamespace and c.relkind in ('r', 'p')
      and not (c.relrowsecurity and c.relforcerowsecurity);
    if v_open is not null then
        return 'row-level security is not forced on ' || v_open;
    end if;
    return 'up';
end $$;

-- Puts one table behind the wall: the engine owns it and sees everything, everyone else sees what a policy shows. Changes
-- nothing that is so already, because every change takes a lock.
create function windlass.wall(p_table regclass) returns void language plpgsql as $$
#variable_conflict use_column
declare
    c record;
begin
    select d.relowner, d.relrowsecurity and d.relforcerowsecurity as forced into c from pg_catalog.pg_class d where d.oid = p_table;
    if c.relowner <> to_regrole('windlass_engine') then
        execute format('alter table %s owner to windlass_engine', p_table);
    end if;
    if not exists (select 1 from pg_catalog.pg_policy p where p.polrelid = p_table and p.polname = 'engine') then
        execute format('create policy engine on %s to windlass_engine using (true) with check (true)', p_table);
    end if;
    if not c.forced then
        execute format('alter table %s enable row level security, force row level security', p_table);
    end if;
end $$;

-- Makes a role of ours. Roles belong to the whole server: the migration of another database may make it at the same time.
create function windlass.make_role(p_role text) returns void language plpgsql as $$
#variable_conflict use_column
begin
    if to_regrole(p_role) is null then
        execute format('create role %I nologin', p_role);
    end if;
exception when duplicate_object or unique_violation then
    null;
end $$;

-- Lets a login act as both roles, unless it may already. Fails where it stays without.
create function windlass.admit(p_login name) returns void language plpgsql as $$
#variable_conflict use_column
declare
    -- Before version 16, whoever is a member may take the role on.
    v_take text := case when current_setting('server_version_num')::int >= 160000 then 'set' else 'member' end;
begin
    -- Two databases that admit the same login at once: one of them finds that the other has done it.
    for i in 1..5 loop
        exit when pg_has_role(p_login, 'windlass_engine', 'usage') and pg_has_role(p_login, 'windlass_app', v_take);
        begin
            execute format('grant windlass_app, windlass_engine to %I', p_login);
        exception when unique_violation or internal_error then
            null;
        end;
    end loop;
    if not (pg_has_role(p_login, 'windlass_engine', 'usage') and pg_has_role(p_login, 'windlass_app', v_take)) then
        raise exception 'the login % does not inherit from windlass_engine', p_login using errcode = '42501';
    end if;
end $$;

-- Raises the walls, or what is missing of them. Answers as `walls` does; what this login may not do is a reason and no
-- error, and then nothing has changed.
create function windlass.raise_walls() returns text language plpgsql as $$
#variable_conflict use_column
declare
    v_owner name := (select pg_get_userbyid(c.relowner) from pg_catalog.pg_class c where c.oid = 'windlass.job'::regclass);
    t record;
begin
    perform windlass.make_role('windlass_app');
    perform windlass.make_role('windlass_engine');
    -- Whoever has worked here goes on: the login that migrates, and the one that owned the tables.
    perform windlass.admit(r.rolname) from pg_catalog.pg_roles r
    where r.rolname in (current_user, v_owner) and r.rolname <> 'windlass_engine' and not r.rolsuper;
    if not has_schema_privilege('windlass_engine', 'windlass', 'create') then
        grant usage, create on schema windlass to windlass_engine;
    end if;
    if not has_schema_privilege('windlass_app', 'windlass', 'usage') then
        grant usage on schema windlass to windlass_app;
    end if;
    for t in select c.oid::regclass as name from pg_catalog.pg_class c
             where c.relnamespace = 'windlass'::regnamespace and c.relkind in ('r', 'p') order by c.relispartition, c.relname loop
        perform windlass.wall(t.name);
    end loop;
    for t in select case c.relkind when 'v' then 'view' else 'sequence' end as kind, c.oid::regclass::text as name
             from pg_catalog.pg_class c
             where c.relnamespace = 'windlass'::regnamespace and c.relkind in ('v', 'S')
               and c.relowner <> to_regrole('windlass_engine')
               -- The sequence of a column goes with its table.
               and not exists (select 1 from pg_catalog.pg_depend d where d.objid = c.oid and d.deptype in ('a', 'i')
                               and d.refclassid = 'pg_class'::regclass)
             union all
             select 'function', p.oid::regprocedure::text from pg_catalog.pg_proc p
             where p.pronamespace = 'windlass'::regnamespace and p.proowner <> to_regrole('windlass_engine') loop
        execute format('alter %s %s owner to windlass_engine', t.kind, t.name);
    end loop;
    -- What a tenant may read: its own rows of these tables.
    for t in
        select c.oid::regclass as name,
               case when c.relname = 'pause'
                    then 'target = ''all'' or target like ''handler:%'' or target = ''tenant:'' || windlass.tenant()'
                    when a.attname = 'tenant_id' then 'tenant_id = windlass.tenant()'
                    else 'windlass.is_own(id)' end as rule
        from pg_catalog.pg_class c
        left join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
        where c.relnamespace = 'windlass'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
          and (a.attname is not null or c.relname in ('outcome', 'event', 'progress', 'checkpoint', 'expiry', 'pause',
                                                       'job_log'))
          and not exists (select 1 from pg_catalog.pg_policy p where p.polrelid = c.oid and p.polname = 'app')
    loop
        execute format('create policy app on %s for select to windlass_app using (%s)', t.name, t.rule);
    end loop;
    grant select on windlass.job, windlass.outcome, windlass.ready, windlass.scheduled, windlass.gated, windlass.key_holder,
        windlass.event, windlass.progress, windlass.pause, windlass.audit, windlass.counter, windlass.job_status_v,
        windlass.job_log, windlass.usage, windlass.usage_event
        to windlass_app;
    -- All but the hash.
    grant select (id, tenant_id, home, name, acts_as, rights, created_at, created_by, expires_at, revoked_at, last_used_at)
        on windlass.api_key to windlass_app;
    grant select on windlass.activity to windlass_app;
    revoke execute on all functions in schema windlass from public;
    grant execute on function windlass.backlog(uuid, bigint, bigint, bigint) to windlass_app;
    grant execute on function windlass.tenant(), windlass.is_own(bigint), windlass.check_own(bigint),
        windlass.own_running(bigint[]), windlass.own_deltas(), windlass.running(bigint[]), windlass.deltas(uuid)
        to windlass_app;
    return windlass.walls();
exception when insufficient_privilege then
    return windlass.walls() || ' (' || sqlerrm || ')';
end $$;

-- The engine's answers to tenants are nobody else's, with walls or without.
revoke execute on function windlass.own_running(bigint[]), windlass.own_deltas() from public;
