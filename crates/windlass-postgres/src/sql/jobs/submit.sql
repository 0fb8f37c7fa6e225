-- One job from any language:
--   select windlass.submit('mail.send', '{"to": "a@example.org"}', delay => '5 minutes', idempotency_key => 'mail-7');
create or replace function windlass.submit(
    handler text, payload json default '{}', tenant uuid default '00000000-0000-0000-0000-000000000000',
    priority int default 0, run_at timestamptz default null, delay interval default null,
    idempotency_key text default null, ordering_key text default null, tags text[] default null,
    queue text default 'default', correlation_id text default null, spec json default null, batch bigint default null
) returns bigint language plpgsql as $$
#variable_conflict use_column
declare
    v_start json := windlass.start_of(run_at, delay);
    v_id bigint;
begin
    if octet_length(idempotency_key) > 256 then
        perform windlass.refuse('idempotency_key', 'it must have 1 to 256 bytes');
    end if;
    perform windlass.check_job(handler, queue, priority, payload, idempotency_key, ordering_key, null);
    perform windlass.check_spec(spec);
    select s.id into v_id from windlass.submit_jobs_within(json_build_array(json_build_object(
        'handler', handler, 'payload', payload, 'tenant', tenant, 'priority', priority, 'start', v_start,
        'idempotency_key', idempotency_key, 'ordering_key', ordering_key, 'tags', to_json(tags), 'queue', queue,
        'correlation_id', correlation_id, 'spec', spec, 'batch', batch::text))) s;
    return v_id;
end $$;

-- The same with jsonb, and with text: PostgreSQL takes a literal for that where it may choose. The payload has no default
-- here, so that `submit('handler')` is one function only.
create or replace function windlass.submit(
    handler text, payload jsonb, tenant uuid default '00000000-0000-0000-0000-000000000000', priority int default 0,
    run_at timestamptz default null, delay interval default null, idempotency_key text default null,
    ordering_key text default null, tags text[] default null, queue text default 'default',
    correlation_id text default null, spec json default null, batch bigint default null
) returns bigint language sql as
$$ select windlass.submit(handler, payload::json, tenant, priority, run_at, delay, idempotency_key, ordering_key, tags,
                          queue, correlation_id, spec, batch) $$;

create or replace function windlass.submit(
    handler text, payload text, tenant uuid default '00000000-0000-0000-0000-000000000000', priority int default 0,
    run_at timestamptz default null, delay interval default null, idempotency_key text default null,
    ordering_key text default null, tags text[] default null, queue text default 'default',
    correlation_id text default null, spec json default null, batch bigint default null
) returns bigint language sql as
$$ select windlass.submit(handler, payload::json, tenant, priority, run_at, delay, idempotency_key, ordering_key, tags,
                          queue, correlation_id, spec, batch) $$;
