-- What is refused of a job that a caller gives as SQL or JSON, and how: every check of a submit from outside the library.

create or replace function windlass.refuse(p_field text, p_message text) returns void language plpgsql as $$
#variable_conflict use_column
begin
    raise exception 'windlass: invalid %: %', p_field, p_message using errcode = '22023', column = p_field;
end $$;

-- Labels are texts: a null or an array among them is refused here, because no node could read it.
create or replace function windlass.check_tags(p_tags json) returns void language plpgsql as $$
#variable_conflict use_column
begin
    if json_typeof(p_tags) = 'null' or p_tags is null then
        return;
    elsif json_typeof(p_tags) <> 'array' then
        perform windlass.refuse('tags', 'it must be an array of texts');
    elsif exists (select 1 from json_array_elements(p_tags) e where json_typeof(e.value) <> 'string') then
        perform windlass.refuse('tags', 'every element must be a text: no null, no number, no array');
    end if;
end $$;

-- What a job carries besides its input (`JobSpec`), where a caller gives it: each part of the type that nodes read, so that
-- no job is accepted which could only become a dead letter. Parts that nobody knows are ignored, as nodes do.
create or replace function windlass.check_spec(p_spec json) returns void language plpgsql as $$
#variable_conflict use_column
declare
    p record;
begin
    if p_spec is null or json_typeof(p_spec) = 'null' then
        return;
    elsif json_typeof(p_spec) <> 'object' then
        perform windlass.refuse('spec', 'it must be a JSON object');
    end if;
    for p in select e.key, e.value, json_typeof(e.value) as type, e.value #>> '{}' as text from json_each(p_spec) e loop
        if p.key in ('timeout', 'retention') then
            perform windlass.check_millis('spec.' || p.key, p.value, true);
        elsif p.key in ('expires_at', 'deadline_at', 'nominal_at') then
            continue when p.type = 'null';
            if p.type <> 'string' or p.text !~ '^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)$' then
                perform windlass.refuse('spec.' || p.key, 'it must be a time in RFC 3339, such as "2030-01-31T12:00:00Z"');
            end if;
            begin
                perform p.text::timestamptz;
            exception when data_exception then
                perform windlass.refuse('spec.' || p.key, 'there is no such time');
            end;
        elsif p.key = 'retry' then
            perform windlass.check_retry(p.value);
        elsif p.key = 'headers' then
            if p.type <> 'object' or exists (select 1 from json_each(case when p.type = 'object' then p.value else '{}' end) h
                                             where json_typeof(h.value) <> 'string') then
                perform windlass.refuse('spec.headers', 'it must be a JSON object of texts');
            end if;
        elsif p.key in ('user', 'service', 'idempotency_key') then
            if p.type not in ('string', 'null') then
                perform windlass.refuse('spec.' || p.key, 'it must be a text');
            end if;
        elsif p.key = 'parent' then
            if p.type <> 'null' and (p.type <> 'string' or p.text !~ '^\d{1,19}$') then
                perform windlass.refuse('spec.parent', 'it must be the id of a job, as a text of digits');
            end if;
        elsif p.key = 'callback' then
            if p.type <> 'null' and (p.type <> 'string' or p.text not in ('on_success', 'on_failure')) then
                perform windlass.refuse('spec.callback', 'it must be "on_success" or "on_failure"');
            end if;
        elsif p.key = 'after' then
            perform windlass.check_after(p.value);
        elsif p.key = 'part' then
            if p.type <> 'null' and p.text !~ '^\d{1,9}$' then
                perform windlass.refuse('spec.part', 'it must be a whole number');
            end if;
        elsif p.key = 'sealed' and p.type <> 'boolean' then
            perform windlass.refuse('spec.sealed', 'it must be true or false');
        end if;
    end loop;
exception when untranslatable_character or invalid_text_representation then
    perform windlass.refuse('spec', 'it holds \u0000 or half of a surrogate pair, which no text can hold');
end $$;

-- What a job waits for: jobs and batches by their ids, as texts.
create or replace function windlass.check_after(p_after json) returns void language plpgsql as $$
#variable_conflict use_column
begin
    if json_typeof(p_after) = 'null' then
        return;
    elsif json_typeof(p_after) <> 'object' or coalesce(json_typeof(p_after -> 'of'), '') <> 'array' then
        perform windlass.refuse('spec.after', 'it must be a JSON object with an array `of`');
    elsif json_array_length(p_after -> 'of') not between 1 and 100 then
        perform windlass.refuse('spec.after', 'it must name 1 to 100 jobs and batches');
    elsif exists (select 1 from json_array_elements(p_after -> 'of') e
                  where json_typeof(e.value) <> 'string' or e.value #>> '{}' !~ '^\d{1,18}$') then
        perform windlass.refuse('spec.after', 'each of them must be an id, as a text of digits');
    elsif coalesce(json_typeof(p_after -> 'any'), 'boolean') <> 'boolean' then
        perform windlass.refuse('spec.after.any', 'it must be true or false');
    elsif coalesce(p_after ->> 'if_failed', 'cancel') not in ('cancel', 'run', 'fail') then
        perform windlass.refuse('spec.after.if_failed', 'it must be "cancel", "run" or "fail"');
    end if;
end $$;

-- What jobs of callers wait for must be there, or be an earlier job of the call, and be of the same tenant: what is another
-- tenant's looks like what is not there.
create or replace function windlass.check_parents(p_jobs json) returns void language plpgsql as $$
#variable_conflict use_column
declare
    p record;
begin
    select x.parent into p
    from json_array_elements(p_jobs) with ordinality j(value, n)
    cross join lateral json_array_elements_text(case when json_typeof(j.value -> 'spec' -> 'after' -> 'of') = 'array'
                                                     then j.value -> 'spec' -> 'after' -> 'of' else '[]' end) x(parent)
    cross join lateral (select coalesce((j.value ->> 'tenant')::uuid, '00000000-0000-0000-0000-000000000000') as id) t
    where not exists (select 1 from windlass.job d where d.id = x.parent::bigint and d.tenant_id = t.id)
      and not exists (select 1 from windlass.batch b where b.id = x.parent::bigint and b.tenant_id = t.id)
      and not exists (select 1 from json_array_elements(p_jobs) with ordinality e(value, n)
                      where e.n < j.n and e.value ->> 'id' = x.parent)
    limit 1;
    if found then
        perform windlass.refuse('spec.after', 'there is no job or batch ' || p.parent);
    end if;
end $$;

create or replace function windlass.check_millis(p_field text, p_value json, p_may_be_null boolean) returns void language plpgsql as $$
#variable_conflict use_column
begin
    if not (p_may_be_null and json_typeof(p_value) = 'null')
       -- As many as fit 64 bits: the longest stands for no limit.
       and (case when p_value::text ~ '^\d{1,20}$' then p_value::text::numeric > 18446744073709551615 else true end) then
        perform windlass.refuse(p_field, 'it must be a whole number of milliseconds, 0 or more');
    end if;
end $$;

-- A retry policy, with the phases after it.
create or replace function windlass.check_retry(p_retry json) returns void language plpgsql as $$
#variable_conflict use_column
declare
    v_phase json := p_retry;
    p record;
begin
    for v_depth in 1..2 loop
        if json_typeof(v_phase) = 'null' then
            return;
        elsif json_typeof(v_phase) <> 'object' then
            perform windlass.refuse('spec.retry', 'it must be a JSON object');
        end if;
        for p in select e.key, e.value from json_each(v_phase) e loop
            if p.key in ('max_attempts', 'after') then
                if p.value::text !~ '^\d{1,5}$' or p.value::text::int > 65535 then
                    perform windlass.refuse('spec.retry.' || p.key, 'it must be a whole number from 0 to 65535');
                end if;
            elsif p.key in ('first_delay', 'max_delay', 'max_elapsed', 'reset_after') then
                perform windlass.check_millis('spec.retry.' || p.key, p.value, p.key in ('max_elapsed', 'reset_after'));
            elsif p.key in ('multiplier', 'jitter') then
                if json_typeof(p.value) <> 'number' then
                    perform windlass.refuse('spec.retry.' || p.key, 'it must be a number');
                end if;
                begin
                    perform p.value::text::float8;
                exception when numeric_value_out_of_range then
                    perform windlass.refuse('spec.retry.' || p.key, 'it is too large or too small a number');
                end;
            end if;
        end loop;
        if v_depth > 1 then
            for p in select n.name from unnest(array['after', 'first_delay', 'max_delay', 'multiplier']) n(name)
                     where v_phase -> n.name is null loop
                perform windlass.refuse('spec.retry.then.' || p.name, 'it is missing');
            end loop;
        end if;
        v_phase := case when v_depth = 1 then v_phase -> 'then' end;
        exit when v_phase is null;
    end loop;
end $$;

create or replace function windlass.check_job(p_handler text, p_queue text, p_priority int, p_payload json, p_key text,
                                   p_ordering_key text, p_delay_us numeric) returns void language plpgsql as $$
#variable_conflict use_column
begin
    if p_handler is null or p_handler = '' or octet_length(p_handler) > 200 then
        perform windlass.refuse('handler', 'it must have 1 to 200 bytes');
    elsif p_queue is null or p_queue = '' or octet_length(p_queue) > 200 then
        perform windlass.refuse('queue', 'it must have 1 to 200 bytes');
    elsif p_priority is null or p_priority not between -32768 and 32767 then
        perform windlass.refuse('priority', 'it must be between -32768 and 32767');
    elsif p_payload is null then
        perform windlass.refuse('payload', 'it must be JSON, and not an SQL null');
    elsif octet_length(p_payload::text) > 4194304 then
        perform windlass.refuse('payload', octet_length(p_payload::text) || ' bytes, at most 4194304 are allowed');
    elsif p_key = '' or octet_length(p_key) > 267 then
        -- What is stored of a batch is the caller's key with `:` and a number of at most ten digits.
        perform windlass.refuse('idempotency_key', 'it must have 1 to 256 bytes');
    elsif p_ordering_key = '' or octet_length(p_ordering_key) > 256 then
        perform windlass.refuse('ordering_key', 'it must have 1 to 256 bytes');
    elsif p_delay_us < 0 then
        perform windlass.refuse('delay', 'it must not be negative');
    end if;
end $$;

-- What a caller names, who is not the engine: names and keys that begin with `windlass.` are the engine's own.
create or replace function windlass.check_unreserved(p_handler text, p_queue text, p_key text, p_ordering_key text,
                                          p_unique_key text default null) returns void language plpgsql as $$
#variable_conflict use_column
declare
    v_field text := case when starts_with(p_handler, 'windlass.') then 'handler'
                         when starts_with(p_queue, 'windlass.') then 'queue'
                         when starts_with(p_key, 'windlass.') then 'idempotency_key'
                         when starts_with(p_ordering_key, 'windlass.') then 'ordering_key'
                         when starts_with(p_unique_key, 'windlass.') then 'unique_key' end;
begin
    if v_field is not null then
        perform windlass.refuse(v_field,
            'names that begin with `windlass.` are reserved for Windlass; choose another one');
    end if;
end $$;

-- Jobs given as JSON by a caller, who is not the engine: an array of objects, each part of its type.
create or replace function windlass.check_jobs(p_jobs json) returns void language plpgsql as $$
#variable_conflict use_column
declare
    j json;
    f record;
begin
    if p_jobs is null or json_typeof(p_jobs) <> 'array' then
        perform windlass.refuse('jobs', 'it must be a JSON array of jobs');
    end if;
    for j in select e.value from json_array_elements(p_jobs) e loop
        if json_typeof(j) <> 'object' then
            perform windlass.refuse('jobs', 'every job must be a JSON object');
        end if;
        for f in
            select p.name, p.rule from (values
                ('id', '^\d{1,19}$', 'it must be a number of at most 19 digits'),
                ('batch', '^\d{1,19}$', 'it must be a number of at most 19 digits'),
                ('priority', '^-?\d{1,5}$', 'it must be between -32768 and 32767'),
                ('tenant', '^[0-9A-Fa-f]{8}-?([0-9A-Fa-f]{4}-?){3}[0-9A-Fa-f]{12}$', 'it must be a UUID')) p(name, form, rule)
            where j ->> p.name !~ p.form
        loop
            perform windlass.refuse(f.name, f.rule);
        end loop;
        if json_typeof(j -> 'start') = 'object' and (j -> 'start' ->> 'at') is null
           and coalesce((j -> 'start' ->> 'after') !~ '^-?\d{1,20}$', true) then
            perform windlass.refuse('start', 'it must be "now", {"after": milliseconds} or {"at": time}');
        end if;
        if json_typeof(j -> 'unique' -> 'within') = 'object'
           and coalesce((j -> 'unique' -> 'within' ->> 'window') !~ '^\d{1,20}$', true) then
            perform windlass.refuse('unique', 'the window must be a whole number of milliseconds');
        end if;
        perform windlass.check_unreserved(j ->> 'handler', j ->> 'queue', j ->> 'idempotency_key', j ->> 'ordering_key',
            j -> 'unique' ->> 'key');
    end loop;
end $$;
