-- When a job starts, as the JSON of a submit says it: at p_run_at, after p_delay, or at once.
create or replace function windlass.start_of(p_run_at timestamptz, p_delay interval) returns json language plpgsql as $$
#variable_conflict use_column
begin
    if p_run_at is not null and p_delay is not null then
        perform windlass.refuse('delay', 'give run_at or delay, not both');
    elsif p_delay < interval '0' then
        perform windlass.refuse('delay', 'it must not be negative');
    elsif p_delay is not null then
        return json_build_object('after', (extract(epoch from p_delay) * 1000)::bigint);
    elsif p_run_at is not null then
        return json_build_object('at', p_run_at);
    end if;
    return null;
end $$;
