-- Keeps what jobs that are still held report: their latest progress, log lines (at most p_keep of a job) and checkpoints.
-- p_lease and p_id are the fences of the notes; p_progress_of, p_line_of and p_checkpoint_of: to which note a value
-- belongs, counted from 1. Answers the places of the notes whose fence holds.
create or replace function windlass.note(
    p_node bigint, p_leases bigint[], p_lease bigint[], p_id bigint[],
    p_progress_of int[], p_sequence bigint[], p_percent real[], p_text text[], p_updated_at timestamptz[],
    p_line_of int[], p_attempt integer[], p_number bigint[], p_at timestamptz[], p_level smallint[], p_message text[],
    p_keep int, p_checkpoint_of int[], p_data json[]
) returns int[] language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_n int[];
begin
    -- A crash may cost progress and lines, but no checkpoint.
    if cardinality(p_checkpoint_of) = 0 then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    -- In a statement of its own: what is kept already is looked at with the lease locked.
    with l as materialized (
        select l.lease_id, l.ids from windlass.lease l
        where l.lease_id = any (p_leases) and l.node_id + 0 = p_node order by l.lease_id, l.part for update)
    select array_agg(f.n::int) into v_n from l
    join unnest(p_lease, p_id) with ordinality f(lease, id, n) on f.lease = l.lease_id and f.id = any (l.ids);
    if v_n is null then
        return '{}';
    end if;
    if cardinality(p_progress_of) > 0 then
        insert into windlass.progress (id, sequence, percent, message, updated_at)
        select distinct on (p_id[x.place]) p_id[x.place], x.sequence, x.percent, x.message, x.updated_at
        from unnest(p_progress_of, p_sequence, p_percent, p_text, p_updated_at) x(place, sequence, percent, message, updated_at)
        where x.place = any (v_n) order by p_id[x.place], x.place desc
        on conflict (id) do update
        set sequence = excluded.sequence, percent = excluded.percent, message = excluded.message,
            updated_at = excluded.updated_at;
    end if;
    if cardinality(p_line_of) > 0 then
        insert into windlass.job_log (id, sequence, lease_id, number, at, attempt, level, message)
        select p_id[a.n], k.top + x.number - k.done, p_lease[a.n], x.number, x.at, x.attempt, x.level, x.message
        from (select distinct u.n from unnest(p_line_of) u(n) where u.n = any (v_n)) a
        cross join lateral (
            select coalesce(max(g.sequence), 0) as top,
                   coalesce(max(g.number) filter (where g.lease_id = p_lease[a.n]), 0) as done
            from windlass.job_log g where g.id = p_id[a.n]) k
        join unnest(p_line_of, p_attempt, p_number, p_at, p_level, p_message) x(place, attempt, number, at, level, message)
             on x.place = a.n
        where x.number > k.done
        on conflict do nothing;
        delete from windlass.job_log g
        using (select distinct p_id[u.n] as id from unnest(p_line_of) u(n) where u.n = any (v_n)) u
        where g.id = u.id and g.sequence <= (select max(h.sequence) from windlass.job_log h where h.id = u.id) - p_keep;
    end if;
    if cardinality(p_checkpoint_of) > 0 then
        insert into windlass.checkpoint (id, data)
        select distinct on (p_id[x.place]) p_id[x.place], x.data
        from unnest(p_checkpoint_of, p_data) x(place, data)
        where x.place = any (v_n) order by p_id[x.place], x.place desc
        on conflict (id) do update set data = excluded.data;
    end if;
    return v_n;
end $$;
