-- The tables. `job` and `outcome` only grow and are dropped by the week; the queue tables hold what waits or runs.
-- Lock order for every writer: lease (by lease_id and part), key_holder (by tenant, key), ready/scheduled/gated, then the rest.

-- Ids made by the database itself carry the machine slot 1023, which no process is ever given.
create sequence windlass.id_seq cache 1;
create function windlass.next_id() returns bigint language sql volatile as
$$ select (((extract(epoch from clock_timestamp()) * 1000)::bigint - 1735689600000) << 22)
          | (1023::bigint << 12) | (nextval('windlass.id_seq') & 4095) $$;

-- Immutable. Insert only; the payload stays the text it came as.
create table windlass.job (
    id bigint not null default windlass.next_id(),
    created_at timestamptz not null default clock_timestamp(),
    run_at timestamptz,                              -- when it is due, if that lay ahead at the submit
    tenant_id uuid not null default '00000000-0000-0000-0000-000000000000',
    batch_id bigint,
    priority smallint not null default 0,
    queue text not null default 'default',
    handler text not null,
    payload json not null default '{}',
    correlation_id text,
    ordering_key text,
    tags text[],
    spec json,
    primary key (id)
) partition by range (id);
create table windlass.job_default partition of windlass.job default;
-- For lists of one tenant, newest first. On an expression, because a second plain index with id in it invites a full
-- index scan where one row is meant.
create index job_tenant on windlass.job (tenant_id, (id + 0));
create index job_batch on windlass.job (batch_id) where batch_id is not null;
create index job_correlation on windlass.job (correlation_id) where correlation_id is not null;

-- One row per ended job. Updated only to mark a dead letter as replayed.
create table windlass.outcome (
    id bigint not null,
    finished_at timestamptz not null,
    started_at timestamptz,
    purge_at timestamptz,                            -- null: a dead letter that nobody has replayed
    node_id bigint,
    status smallint not null,
    attempt integer not null,
    failed integer not null,
    recoveries integer not null,
    reason text,
    note text,
    output json,
    error json,
    replayed_at timestamptz,
    replayed_as bigint,
    replayed_by text,
    primary key (id)
) partition by range (id);
create table windlass.outcome_default partition of windlass.outcome default;
create index outcome_dead on windlass.outcome (id) where status = 8;

-- The packed queue: one row per chunk of jobs. Never analysed: it is empty one moment and deep the next.
create table windlass.ready (
    position bigint not null,                        -- fair position within (queue, rank)
    first bigint not null,                           -- the first id: oldest first where positions are equal
    tenant_id uuid not null,
    rank smallint not null,                          -- minus the priority
    failed integer not null default 0,
    recoveries integer not null default 0,
    resumed boolean not null default false,          -- an earlier attempt may have left a checkpoint
    queue text not null,
    ids bigint[] not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_threshold = 2000000000);
create index ready_claim on windlass.ready (queue, rank, position, first);

create table windlass.scheduled (
    run_at timestamptz not null,
    id bigint not null,
    tenant_id uuid not null,
    kind smallint not null,                          -- 1 scheduled, 2 retrying
    rank smallint not null,
    failed integer not null default 0,
    recoveries integer not null default 0,
    resumed boolean not null default false,
    queue text not null
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_threshold = 2000000000);
create index scheduled_due on windlass.scheduled (run_at, id);
create unique index scheduled_id on windlass.scheduled (id);

create table windlass.gated (
    id bigint not null,
    tenant_id uuid not null,
    created_at timestamptz not null,                 -- the line of a key is in order of submission, by this clock
    run_at timestamptz,                              -- due then, if the gate opens earlier
    rank smallint not null,
    failed integer not null default 0,
    recoveries integer not null default 0,
    resumed boolean not null default false,
    queue text not null,
    gate text collate "C" not null
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_threshold = 2000000000);
create index gated_gate on windlass.gated (gate, tenant_id, created_at, id);
create unique index gated_id on windlass.gated (id);

create table windlass.key_holder (
    tenant_id uuid not null,
    ordering_key text collate "C" not null,
    id bigint not null,
    primary key (tenant_id, ordering_key)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- What nodes hold: a claim is one lease, its jobs in parts of at most 128 with the same counts. The lease is the fence of
-- its jobs: made by the node, never reused. Parts are short so that an ended job rewrites little, and nothing is toasted.
create table windlass.lease (
    lease_id bigint not null,
    part smallint not null,
    node_id bigint not null,
    claimed_at timestamptz not null default clock_timestamp(),
    failed integer not null,
    recoveries integer not null,
    ids bigint[] not null,
    canceled bigint[] not null default '{}',         -- jobs whose cancel was requested
    cancel_reasons text[] not null default '{}',     -- one for each of them
    primary key (lease_id, part)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_threshold = 2000000000);
create index lease_node on windlass.lease (node_id);

create sequence windlass.node_seq;
create table windlass.node (
    node_id bigint not null primary key default nextval('windlass.node_seq'),
    slot smallint not null,
    running integer not null default 0,
    started_at timestamptz not null default clock_timestamp(),
    heartbeat_at timestamptz not null default clock_timestamp(),
    info json not null
) with (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Machine slots 0 to 1022. A slot that was given back stays unused for a while.
create table windlass.slot (
    slot smallint not null primary key,
    node_id bigint,
    free_at timestamptz not null default '-infinity'
);
insert into windlass.slot (slot) select generate_series(0, 1022);

-- How far service has come, so that SQL and other processes place new chunks where they belong.
create table windlass.line (
    queue text not null,
    rank smallint not null,
    served bigint not null,
    primary key (queue, rank)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create table windlass.tenant_line (
    queue text not null,
    rank smallint not null,
    tenant_id uuid not null,
    next bigint not null,
    primary key (queue, rank, tenant_id)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Idempotency keys (kind i, scope handler) and unique keys (kind u, scope empty). The key is kept as a hash where it is
-- long, because an index row has a limit and content keys hold whole payloads.
create table windlass.job_key (
    kind "char" not null,
    tenant_id uuid not null,
    scope text not null,
    key text not null,
    id bigint not null,
    until timestamptz,
    primary key (kind, tenant_id, scope, key)
) with (fillfactor = 80);
create index job_key_id on windlass.job_key (id);

create table windlass.expiry (
    at timestamptz not null,
    id bigint not null
);
create index expiry_at on windlass.expiry (at, id);

-- What happened to a job between its submit and where it is now. A plain successful job has none.
create table windlass.event (
    id bigint not null,
    seq bigint generated always as identity,
    at timestamptz not null,
    started_at timestamptz,
    node_id bigint,
    status smallint not null,
    attempt integer not null,
    failed integer not null,
    recoveries integer not null,
    error json,
    note text
);
create index event_id on windlass.event (id, seq);

create table windlass.checkpoint (
    id bigint not null primary key,
    data json not null
) with (fillfactor = 70);

create table windlass.progress (
    id bigint not null primary key,
    sequence bigint not null,
    percent real not null,
    message text not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create table windlass.pause (
    target text not null primary key,
    by text not null,
    reason text not null,
    at timestamptz not null default clock_timestamp()
);

create table windlass.audit (
    id bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    tenant_id uuid,
    actor text not null,
    action text not null,
    target text not null,
    detail text
);
create index audit_tenant on windlass.audit (tenant_id, id);
create index audit_target on windlass.audit (target, id);

-- Ended jobs by tenant and status. Writers append packed deltas; maintenance folds them.
create table windlass.counter (
    tenant_id uuid not null,
    status smallint not null,
    n bigint not null,
    primary key (tenant_id, status)
) with (fillfactor = 70);
create table windlass.counter_delta (
    tenants uuid[] not null,
    statuses smallint[] not null,
    counts bigint[] not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_analyze_threshold = 2000000000);

-- Weekly partitions, Monday 00:00 UTC, behind the walls of migration 7 where those stand. Answers how many were made.
create function windlass.week_bound(p_day date) returns bigint language sql immutable as
$$ select greatest(0, (extract(epoch from p_day::timestamp)::bigint * 1000 - 1735689600000)) << 22 $$;

create function windlass.make_weeks(p_ahead int) returns int language plpgsql as $$
#variable_conflict use_column
declare
    v_day date;
    v_made int := 0;
    v_table text;
begin
    for i in 0..p_ahead loop
        v_day := date_trunc('week', clock_timestamp() at time zone 'UTC')::date + 7 * i;
        foreach v_table in array array['job', 'outcome'] loop
            continue when to_regclass(format('windlass.%I', v_table || '_p' || to_char(v_day, 'YYYYMMDD'))) is not null;
            begin
                execute format('create table windlass.%I partition of windlass.%I for values from (%s) to (%s)',
                    v_table || '_p' || to_char(v_day, 'YYYYMMDD'), v_table,
                    windlass.week_bound(v_day), windlass.week_bound(v_day + 7));
                if (select c.relforcerowsecurity from pg_class c where c.oid = 'windlass.job'::regclass) then
                    perform windlass.wall(format('windlass.%I', v_table || '_p' || to_char(v_day, 'YYYYMMDD'))::regclass);
                end if;
                v_made := v_made + 1;
            exception
                -- Another process made it, or rows of that week are in the default partition, where they stay.
                when duplicate_table or check_violation or lock_not_available or invalid_object_definition then null;
            end;
        end loop;
    end loop;
    return v_made;
end $$;
select windlass.make_weeks(2);
