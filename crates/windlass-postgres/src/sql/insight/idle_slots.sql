-- Replication slots that nobody reads, with the bytes of log that the server keeps for each.
select s.slot_name::text as slot,
       coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::bigint as kept
from pg_replication_slots s
where not s.active and s.restart_lsn is not null
order by kept desc
