-- The schema as the catalog has it, line by line and in order, for src/sql/schema.txt. Says the same on every supported
-- version of PostgreSQL: no rights of owners, which grow with versions, no partitions by the week, and of functions the
-- digest of their own text, not of what the server prints. The engine owns what names no owner.
with relation as (
    select c.oid, c.relname, c.relkind, c.reloptions, c.relacl, c.relowner, c.relrowsecurity, c.relforcerowsecurity
    from pg_catalog.pg_class c
    where c.relnamespace = 'windlass'::regnamespace and not c.relispartition and c.relkind in ('r', 'p', 'v', 'S')),
-- Sorted by object, kind of line, and name.
line(object, kind, name, text) as (
    select case r.relkind when 'v' then 'view ' when 'S' then 'sequence ' else 'table ' end || r.relname, 0, '',
           case r.relkind when 'v' then 'view ' when 'S' then 'sequence ' else 'table ' end || r.relname
           || coalesce(' partition by ' || pg_get_partkeydef(r.oid), '')
           || coalesce(' with (' || array_to_string(r.reloptions, ', ') || ')', '')
           || case when r.relowner = 'windlass_engine'::regrole then '' else ' owner ' || r.relowner::regrole end
           || case when r.relforcerowsecurity and r.relrowsecurity then ' behind the wall' else '' end
    from relation r
    union all
    select 'table ' || r.relname, 1, lpad(a.attnum::text, 4, '0'),
           '  column ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
           || case when a.attcollation <> t.typcollation then ' collate ' || l.collname else '' end
           || case when a.attnotnull then ' not null' else '' end
           || case a.attidentity when 'a' then ' always identity' when 'd' then ' identity' else '' end
           || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
    from relation r join pg_catalog.pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
    join pg_catalog.pg_type t on t.oid = a.atttypid
    left join pg_catalog.pg_collation l on l.oid = a.attcollation
    left join pg_catalog.pg_attrdef d on d.adrelid = r.oid and d.adnum = a.attnum
    where r.relkind in ('r', 'p')
    union all
    select 'view ' || r.relname, 1, lpad(a.attnum::text, 4, '0'),
           '  column ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
    from relation r join pg_catalog.pg_attribute a on a.attrelid = r.oid and a.attnum > 0
    where r.relkind = 'v'
    union all
    select 'table ' || r.relname, 2, k.conname, '  constraint ' || k.conname || ' ' || pg_get_constraintdef(k.oid)
    from relation r join pg_catalog.pg_constraint k on k.conrelid = r.oid and k.contype <> 'n'
    union all
    select 'table ' || r.relname, 3, i.relname, '  index ' || i.relname || substring(pg_get_indexdef(i.oid) from ' USING .*')
           || case when x.indisunique then ' unique' else '' end || case when x.indisvalid then '' else ' invalid' end
    from relation r join pg_catalog.pg_index x on x.indrelid = r.oid join pg_catalog.pg_class i on i.oid = x.indexrelid
    union all
    select 'table ' || r.relname, 4, t.tgname, '  trigger ' || substring(pg_get_triggerdef(t.oid) from 'TRIGGER (.*)')
    from relation r join pg_catalog.pg_trigger t on t.tgrelid = r.oid and not t.tgisinternal
    union all
    select 'table ' || r.relname, 5, p.polname, '  policy ' || p.polname || ' for '
           || case p.polcmd when 'r' then 'select' when '*' then 'all' else p.polcmd::text end
           || ' to ' || (select string_agg(o.role::regrole::text, ', ') from unnest(p.polroles) o(role))
           || coalesce(' using (' || pg_get_expr(p.polqual, p.polrelid) || ')', '')
           || coalesce(' with check (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')', '')
    from relation r join pg_catalog.pg_policy p on p.polrelid = r.oid
    union all
    select case r.relkind when 'v' then 'view ' when 'S' then 'sequence ' else 'table ' end || r.relname, 6,
           a.privilege_type, '  grant ' || lower(a.privilege_type) || ' to ' || a.grantee::regrole
    from relation r cross join lateral aclexplode(r.relacl) a where a.grantee <> r.relowner
    union all
    select 'table ' || r.relname, 6, c.privilege_type || c.grantee::text,
           '  grant ' || lower(c.privilege_type) || ' (' || string_agg(a.attname, ', ' order by a.attnum) || ') to '
           || c.grantee::regrole
    from relation r join pg_catalog.pg_attribute a on a.attrelid = r.oid
    cross join lateral aclexplode(a.attacl) c where c.grantee <> r.relowner
    group by r.relname, c.privilege_type, c.grantee
    union all
    select 'function ' || p.oid::regprocedure, 0, '',
           'function ' || p.proname || '(' || pg_get_function_arguments(p.oid) || ') returns '
           || coalesce(pg_get_function_result(p.oid), '') || ' language ' || l.lanname
           || case p.provolatile when 'i' then ' immutable' when 's' then ' stable' else '' end
           || case when p.prosecdef then ' security definer' else '' end
           || case when p.prorows not in (0, 1000) then ' rows ' || p.prorows else '' end
           || coalesce(' set ' || array_to_string(p.proconfig, ', '), '')
           || case when p.proowner = 'windlass_engine'::regrole then '' else ' owner ' || p.proowner::regrole end
           || ' text ' || left(encode(sha256(convert_to(p.prosrc, 'UTF8')), 'hex'), 16)
    from pg_catalog.pg_proc p join pg_catalog.pg_language l on l.oid = p.prolang
    where p.pronamespace = 'windlass'::regnamespace
    union all
    select 'function ' || p.oid::regprocedure, 6, a.grantee::text,
           '  grant execute to ' || case when a.grantee = 0 then 'public' else a.grantee::regrole::text end
    from pg_catalog.pg_proc p cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
    where p.pronamespace = 'windlass'::regnamespace and a.grantee <> p.proowner)
select text from line order by object collate "C", kind, name collate "C", text collate "C"
