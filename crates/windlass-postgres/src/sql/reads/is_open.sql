-- Whether the server can take a JSON value apart.
create or replace function windlass.is_open(p_json json) returns boolean language plpgsql immutable as $$
#variable_conflict use_column
begin
    perform p_json -> 'any';
    return true;
exception when data_exception then
    return false;
end $$;
