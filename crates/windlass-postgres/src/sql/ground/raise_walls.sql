-- Walls between tenants. Two roles without login: `windlass_engine` owns everything here and sees every tenant by a policy
-- that says so; `windlass_app` reads one tenant, the one that the setting `windlass.tenant` names for a transaction, and
-- nothing where it names none. Row-level security is forced, so that it binds the owner too. `raise_walls` builds all of
-- this and may be called again at any time; where the roles cannot be made, everything works without walls.

-- Whether the walls stand: 'up', or the reason why not.
create or replace function windlass.walls() returns text language plpgsql stable as $$
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
create or replace function windlass.wall(p_table regclass) returns void language plpgsql as $$
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
create or replace function windlass.make_role(p_role text) returns void language plpgsql as $$
#variable_conflict use_column
begin
    if to_regrole(p_role) is null then
        execute format('create role %I nologin', p_role);
    end if;
exception when duplicate_object or unique_violation then
    null;
end $$;

-- Lets a login act as both roles, unless it may already. Fails where it stays without.
create or replace function windlass.admit(p_login name) returns void language plpgsql as $$
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
create or replace function windlass.raise_walls() returns text language plpgsql as $$
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
                                                       'job_log', 'job_cost'))
          and not exists (select 1 from pg_catalog.pg_policy p where p.polrelid = c.oid and p.polname = 'app')
    loop
        execute format('create policy app on %s for select to windlass_app using (%s)', t.name, t.rule);
    end loop;
    grant select on windlass.job, windlass.outcome, windlass.ready, windlass.scheduled, windlass.gated, windlass.key_holder,
        windlass.event, windlass.progress, windlass.pause, windlass.audit, windlass.counter, windlass.counter_end,
        windlass.job_status_v, windlass.job_log, windlass.job_cost, windlass.usage, windlass.usage_event
        to windlass_app;
    -- All but the hash.
    grant select (id, tenant_id, home, name, acts_as, rights, created_at, created_by, expires_at, revoked_at, last_used_at)
        on windlass.api_key to windlass_app;
    grant select on windlass.activity to windlass_app;
    revoke execute on all functions in schema windlass from public;
    grant execute on function windlass.backlog(uuid, bigint, bigint, bigint, bigint) to windlass_app;
    grant execute on function windlass.json_text(json, text), windlass.is_open(json), windlass.tenant(), windlass.is_own(bigint),
        windlass.check_own(bigint),
        windlass.own_running(bigint[]), windlass.own_deltas(), windlass.running(bigint[]), windlass.deltas(uuid), windlass.ended(uuid)
        to windlass_app;
    return windlass.walls();
exception when insufficient_privilege then
    return windlass.walls() || ' (' || sqlerrm || ')';
end $$;
