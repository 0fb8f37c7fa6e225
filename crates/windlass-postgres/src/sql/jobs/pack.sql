-- Plain INSERT INTO windlass.job from any ORM: packed at the end of the statement. `store_jobs` and
-- `submit_plain` switch it off around their own inserts. Not by a setting of the function: only superusers may create
-- functions that set a name of our own.
create or replace function windlass.pack() returns trigger language plpgsql as $$
#variable_conflict use_column
declare
    v_ids bigint[];
begin
    perform windlass.check_job(n.handler, n.queue, n.priority, n.payload, null, n.ordering_key, null),
            windlass.check_unreserved(n.handler, n.queue, null, n.ordering_key), windlass.check_spec(n.spec)
    from new_rows n;
    select array_agg(n.id order by n.id) into v_ids from new_rows n;
    if v_ids is not null then
        perform windlass.place_jobs(v_ids);
        perform windlass.admit_stored(v_ids, false, true);
    end if;
    return null;
end $$;

create or replace trigger pack after insert on windlass.job referencing new table as new_rows for each statement
    when (current_setting('windlass.packed', true) is distinct from 'on') execute function windlass.pack();
