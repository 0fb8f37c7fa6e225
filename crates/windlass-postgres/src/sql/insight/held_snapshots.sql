-- Who has held an old snapshot for longer than $1 seconds: sessions of this database and of replicas, prepared transactions,
-- and slots that nobody reads. Vacuum's own snapshots hold nothing back.
select 'session' as kind, a.pid::text as name, coalesce(a.application_name, '') as application,
       coalesce(a.usename::text, '') as role, coalesce(a.state, a.backend_type, '') as state,
       extract(epoch from clock_timestamp() - coalesce(a.xact_start, a.backend_start))::float8 as held,
       extract(epoch from clock_timestamp() - a.query_start)::float8 as query_since
from pg_stat_activity a
where (a.backend_xmin is not null or a.backend_xid is not null) and a.pid <> pg_backend_pid()
  and (a.datname = current_database() or a.backend_type = 'walsender') and a.backend_type <> 'autovacuum worker'
  and coalesce(a.xact_start, a.backend_start) < clock_timestamp() - make_interval(secs => $1)
union all
select 'prepared', p.gid, '', p.owner::text, 'prepared', extract(epoch from clock_timestamp() - p.prepared)::float8, null
from pg_prepared_xacts p
where p.database = current_database() and p.prepared < clock_timestamp() - make_interval(secs => $1)
union all
select 'slot', s.slot_name::text, '', '', s.slot_type || ', inactive', null, null
from pg_replication_slots s
where not s.active and (s.xmin is not null or s.catalog_xmin is not null)
order by held desc nulls last
