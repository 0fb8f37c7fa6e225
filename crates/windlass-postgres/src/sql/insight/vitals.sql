-- How the database is, in one row. The oldest due job is looked for at the heads of lines (ready_claim, stepping from line to
-- line) and among scheduled ones that nobody has promoted (scheduled_due; the time is read once, so that the index is used).
with recursive line as (
    (select queue, rank, first from windlass.ready order by queue, rank, position, first limit 1)
    union all
    select n.queue, n.rank, n.first
    from line l
    cross join lateral (select queue, rank, first from windlass.ready r where (r.queue, r.rank) > (l.queue, l.rank)
                        order by queue, rank, position, first limit 1) n),
head as (
    select greatest(coalesce(j.run_at, j.created_at), (select max(e.at) from windlass.event e where e.id = l.first)) as since
    from line l
    cross join lateral (select run_at, created_at from windlass.job where job.id = l.first offset 0) j
    union all
    (select run_at from windlass.scheduled where run_at <= (select clock_timestamp()) order by run_at, id limit 1))
select (select coalesce(sum(t.n_dead_tup), 0)::bigint from pg_stat_user_tables t where t.schemaname = 'windlass'
        and t.relname in ('ready', 'scheduled', 'gated', 'lease', 'key_holder')) as dead_rows,
       pg_notification_queue_usage()::float8 as notify_use,
       pg_database_size(current_database()) as bytes,
       -- outcome_dead, and no further than $1: they can be many.
       (select count(*) from (select 1 from windlass.outcome where status = 8 and replayed_at is null
                              and (purge_at is null or purge_at > (select clock_timestamp())) limit $1) d) as dead_letters,
       (select extract(epoch from clock_timestamp() - min(since))::float8 from head) as oldest_due
