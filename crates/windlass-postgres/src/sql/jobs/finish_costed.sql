-- The same as `finish`, for attempts of which some have cost something: [{"n": place, "cents": .., "units": ..}].
create or replace function windlass.finish_costed(
    p_node bigint, p_leases bigint[], p_lease bigint[], p_id bigint[], p_attempt integer[], p_ran bigint[],
    p_op smallint[], p_keep bigint[], p_output json[], p_failed integer[], p_delay bigint[], p_text text[],
    p_error json[], p_fresh boolean[], p_follow json, p_cost json
) returns table (o_n int[], o_status smallint[]) language plpgsql as $$
#variable_conflict use_column
declare
    f record;
    c record;
begin
    select * into f from windlass.finish(p_node, p_leases, p_lease, p_id, p_attempt, p_ran, p_op, p_keep, p_output,
        p_failed, p_delay, p_text, p_error, p_fresh, p_follow);
    select array_agg(p_id[a.n]) as ids, array_agg((e.v ->> 'cents')::bigint) as cents,
           array_agg((e.v ->> 'units')::bigint) as units, array_agg(a.status in (6, 7, 8)) as ended
    into c
    from json_array_elements(p_cost) e(v)
    join unnest(f.o_n, f.o_status) a(n, status) on a.n = (e.v ->> 'n')::int;
    if c.ids is not null then
        perform windlass.add_usage(c.ids, c.cents, c.units, c.ended);
    end if;
    return query select f.o_n, f.o_status;
end $$;
