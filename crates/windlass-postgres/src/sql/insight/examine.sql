-- What the server and the database say of themselves, in one row.
select current_setting('server_version_num')::int as version,
       pg_is_in_recovery() as recovery,
       age(d.datfrozenxid)::bigint as xid_age,
       mxid_age(d.datminmxid)::bigint as mxid_age,
       pg_notification_queue_usage()::float8 as notifications,
       current_setting('fsync')::bool as fsync,
       current_setting('full_page_writes')::bool as full_page_writes,
       current_setting('synchronous_commit') as synchronous_commit,
       current_setting('autovacuum')::bool as autovacuum,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int as connections_max,
       (select count(*) from pg_stat_activity a where a.backend_type = 'client backend')::int as connections,
       (select r.rolsuper from pg_roles r where r.rolname = current_user) as superuser,
       pg_has_role(current_user, 'pg_read_all_stats', 'usage') as sees_sessions,
       -- No address means a socket, and the server's own that nothing leaves the machine.
       coalesce(not (select s.ssl from pg_stat_ssl s where s.pid = pg_backend_pid())
                and not inet_client_addr() <<= any (array['127.0.0.0/8', '::1/128']::inet[])
                and inet_client_addr() <> inet_server_addr(), false) as exposed,
       current_setting('log_parameter_max_length') as log_parameter_max_length,
       current_setting('log_statement') as log_statement,
       current_setting('log_min_duration_statement') as log_min_duration,
       (select count(*) from pg_roles r where r.rolname in ('windlass_app', 'windlass_engine'))::int as roles,
       coalesce((select c.relrowsecurity and c.relforcerowsecurity from pg_class c
                 where c.oid = to_regclass('windlass.job')), false) as row_security,
       (select count(*) from generate_series(0, 1) w(n) cross join unnest(array['job', 'outcome']) t(name)
        where to_regclass('windlass.' || t.name || '_p'
              || to_char(date_trunc('week', clock_timestamp() at time zone 'UTC')::date + 7 * w.n, 'YYYYMMDD')) is null)::int
           as weeks_missing,
       (select coalesce(sum(cardinality(l.ids)), 0) from windlass.lease l
        left join windlass.node n on n.node_id = l.node_id
        where l.claimed_at < clock_timestamp() - make_interval(secs => 3 * $1)
          and (n.node_id is null or n.heartbeat_at < clock_timestamp() - make_interval(secs => 3 * $1)))::bigint as stuck,
       (select coalesce(sum(greatest(0, h.jobs - n.running)), 0) from windlass.node n
        cross join lateral (select coalesce(sum(cardinality(l.ids)), 0) as jobs from windlass.lease l
                            where l.node_id = n.node_id
                              and l.claimed_at < clock_timestamp() - make_interval(secs => 6 * $1)) h
        where n.heartbeat_at >= clock_timestamp() - make_interval(secs => 3 * $1))::bigint as unsaved,
       (select s.digest from windlass.schema_object s where s.name = 'server') as noted_on
from pg_database d where d.datname = current_database()
