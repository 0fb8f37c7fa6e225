-- What the schema is made of, so that `windlass doctor` can tell what someone has changed since. In `schema_object`: what
-- the catalog says of each object, the major version of the server, and what `ground/functions.rs` notes of the files of
-- functions: `file <path>` for each, and `release` for who wrote them.

-- Every object of the schema with a digest of its definition. Partitions come and go and are left out. The search path is
-- fixed, because definitions are printed by what it finds.
create or replace function windlass.schema_objects() returns table (o_name text, o_digest text) language sql stable
set search_path = pg_catalog as
$$ select 'function ' || p.oid::regprocedure::text, md5(pg_get_functiondef(p.oid))
   from pg_proc p where p.pronamespace = 'windlass'::regnamespace and p.prokind = 'f'
   union all
   select 'table windlass.' || c.relname,
          md5(c.relkind::text || c.relrowsecurity || c.relforcerowsecurity || coalesce(array_to_string(c.reloptions, ','), '') ||
              string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull || ' ' ||
                         coalesce(pg_get_expr(d.adbin, d.adrelid), ''), ',' order by a.attnum))
   from pg_class c
   join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
   left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
   where c.relnamespace = 'windlass'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
   group by c.oid, c.relname, c.relkind, c.relrowsecurity, c.relforcerowsecurity, c.reloptions
   union all
   select 'index windlass.' || c.relname, md5(pg_get_indexdef(c.oid) || i.indisvalid)
   from pg_class c join pg_index i on i.indexrelid = c.oid
   where c.relnamespace = 'windlass'::regnamespace and not c.relispartition
     and not (select t.relispartition from pg_class t where t.oid = i.indrelid)
   union all
   select 'trigger ' || t.tgname || ' on ' || t.tgrelid::regclass::text, md5(pg_get_triggerdef(t.oid) || t.tgenabled::text)
   from pg_trigger t join pg_class c on c.oid = t.tgrelid
   where c.relnamespace = 'windlass'::regnamespace and not t.tgisinternal and not c.relispartition
   union all
   select 'view windlass.' || c.relname, md5(pg_get_viewdef(c.oid) || coalesce(array_to_string(c.reloptions, ','), ''))
   from pg_class c where c.relnamespace = 'windlass'::regnamespace and c.relkind = 'v'
   union all
   select 'policy ' || p.polname || ' on ' || p.polrelid::regclass::text,
          md5(p.polcmd::text || coalesce(pg_get_expr(p.polqual, p.polrelid), '') ||
              coalesce(pg_get_expr(p.polwithcheck, p.polrelid), ''))
   from pg_policy p join pg_class c on c.oid = p.polrelid
   where c.relnamespace = 'windlass'::regnamespace and not c.relispartition $$;

-- Remembers the schema as it is. Called when migrations or functions were applied. The row `server` tells which server
-- printed the definitions: another major version prints them differently.
create or replace function windlass.note_schema() returns void language plpgsql as $$
#variable_conflict use_column
begin
    -- The lock of migrations: several processes may have just migrated.
    perform pg_advisory_xact_lock(7238934417284650001);
    delete from windlass.schema_object s where s.name <> 'release' and s.name not like 'file %';
    insert into windlass.schema_object (name, digest)
    select o.o_name, o.o_digest from windlass.schema_objects() o
    union all select 'server', (current_setting('server_version_num')::int / 10000)::text;
end $$;

-- What has been changed, removed or added since.
create or replace function windlass.schema_drift() returns table (o_name text, o_change text) language sql stable as
$$ select coalesce(k.name, o.o_name),
          case when o.o_name is null then 'is missing' when k.name is null then 'was added' else 'was changed' end
   from (select * from windlass.schema_object s
         where s.name not in ('server', 'release') and s.name not like 'file %') k
   full join windlass.schema_objects() o on o.o_name = k.name
   where k.digest is distinct from o.o_digest order by 1 $$;
