-- Many jobs of one handler; the ids in order of the payloads. Payload i has the idempotency key `key:i`, counted from 0.
create or replace function windlass.submit_many(
    handler text, payloads json, tenant uuid default '00000000-0000-0000-0000-000000000000',
    priority int default 0, run_at timestamptz default null, delay interval default null,
    idempotency_key text default null, tags text[] default null, queue text default 'default', correlation_id text default null,
    spec json default null, batch bigint default null
) returns setof bigint language plpgsql as $$
#variable_conflict use_column
declare
    v_start json := windlass.start_of(run_at, delay);
begin
    if payloads is null or json_typeof(payloads) <> 'array' then
        perform windlass.refuse('payloads', 'it must be a JSON array');
    elsif idempotency_key = '' or octet_length(idempotency_key) > 256 then
        perform windlass.refuse('idempotency_key', 'it must have 1 to 256 bytes');
    end if;
    perform windlass.check_unreserved(handler, queue, idempotency_key, null);
    perform windlass.check_spec(spec);
    return query select s.id from windlass.submit_jobs_within((
        select coalesce(json_agg(json_build_object(
            'handler', handler, 'payload', e.value, 'tenant', tenant, 'priority', priority, 'start', v_start,
            'idempotency_key', idempotency_key || ':' || (e.ordinality - 1), 'tags', to_json(tags), 'queue', queue, 'correlation_id', correlation_id, 'spec', spec,
            'batch', batch::text) order by e.ordinality), '[]')
        from json_array_elements(payloads) with ordinality e)) s;
end $$;

create or replace function windlass.submit_many(
    handler text, payloads jsonb, tenant uuid default '00000000-0000-0000-0000-000000000000', priority int default 0,
    run_at timestamptz default null, delay interval default null, idempotency_key text default null,
    tags text[] default null, queue text default 'default', correlation_id text default null,
    spec json default null, batch bigint default null
) returns setof bigint language sql as
$$ select windlass.submit_many(handler, payloads::json, tenant, priority, run_at, delay, idempotency_key, tags, queue,
                               correlation_id, spec, batch) $$;

create or replace function windlass.submit_many(
    handler text, payloads text, tenant uuid default '00000000-0000-0000-0000-000000000000', priority int default 0,
    run_at timestamptz default null, delay interval default null, idempotency_key text default null,
    tags text[] default null, queue text default 'default', correlation_id text default null,
    spec json default null, batch bigint default null
) returns setof bigint language sql as
$$ select windlass.submit_many(handler, payloads::json, tenant, priority, run_at, delay, idempotency_key, tags, queue,
                               correlation_id, spec, batch) $$;
