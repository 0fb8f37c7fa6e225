-- What starts jobs again and again. `next_at` is null when it never fires again. The input may be an envelope.
create table windlass.schedule (
    tenant_id uuid not null,
    name text collate "C" not null,
    id bigint not null,
    version bigint not null,
    spec json not null,
    input json not null,
    sealed boolean not null,
    paused boolean not null,
    next_at timestamptz,
    last_at timestamptz,
    created_at timestamptz not null,
    changed_at timestamptz not null,
    primary key (tenant_id, name),
    constraint schedule_version check (version > 0),
    constraint schedule_times check (isfinite(next_at) and isfinite(last_at) and isfinite(created_at) and isfinite(changed_at))
);
create index schedule_due on windlass.schedule (next_at, id) where not paused and next_at is not null;
