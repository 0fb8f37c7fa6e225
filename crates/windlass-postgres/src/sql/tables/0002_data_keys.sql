-- The data keys that seal what jobs carry (SEC-2), wrapped by keys that are never here.

-- A destroyed key has no `wrapped`; its row stays, so that no version is ever used again.
create table windlass.data_key (
    tenant_id uuid not null,
    version integer not null check (version > 0),
    kek text not null,
    wrapped bytea,
    created_at timestamptz not null default clock_timestamp(),
    primary key (tenant_id, version)
);
