-- Weekly partitions, Monday 00:00 UTC, behind the walls of ground/raise_walls.sql where those stand. Answers how many were
-- made.
create or replace function windlass.week_bound(p_day date) returns bigint language sql immutable as
$$ select greatest(0, (extract(epoch from p_day::timestamp)::bigint * 1000 - 1735689600000)) << 22 $$;

create or replace function windlass.make_weeks(p_ahead int) returns int language plpgsql as $$
#variable_conflict use_column
declare
    v_day date;
    v_made int := 0;
    v_table text;
begin
    for i in 0..p_ahead loop
        v_day := date_trunc('week', clock_timestamp() at time zone 'UTC')::date + 7 * i;
        foreach v_table in array array['job', 'outcome'] loop
            continue when to_regclass(format('windlass.%I', v_table || '_p' || to_char(v_day, 'YYYYMMDD'))) is not null;
            begin
                execute format('create table windlass.%I partition of windlass.%I for values from (%s) to (%s)',
                    v_table || '_p' || to_char(v_day, 'YYYYMMDD'), v_table,
                    windlass.week_bound(v_day), windlass.week_bound(v_day + 7));
                if (select c.relforcerowsecurity from pg_class c where c.oid = 'windlass.job'::regclass) then
                    perform windlass.wall(format('windlass.%I', v_table || '_p' || to_char(v_day, 'YYYYMMDD'))::regclass);
                end if;
                v_made := v_made + 1;
            exception
                -- Another process made it, or rows of that week are in the default partition, where they stay.
                when duplicate_table or check_violation or lock_not_available or invalid_object_definition then null;
            end;
        end loop;
    end loop;
    return v_made;
end $$;

-- The weeks that ended before p_before, oldest first.
create or replace function windlass.old_weeks(p_before timestamptz) returns setof date language sql stable as
$$ select to_date(substr(c.relname, 6), 'YYYYMMDD') as day
   from pg_inherits i join pg_class c on c.oid = i.inhrelid
   where i.inhparent = 'windlass.job'::regclass and c.relname ~ '^job_p[0-9]{8}$'
     and (to_date(substr(c.relname, 6), 'YYYYMMDD') + 7)::timestamp at time zone 'UTC' < p_before
   order by 1 $$;

-- Drops one old week. Jobs that are not over (unfinished, dead letters, kept longer) move to the default partition; if
-- there are more than p_survivors of them, the week stays and its rows are removed one by one. Short locks only.
create or replace function windlass.drop_week(p_day date, p_survivors int) returns boolean language plpgsql
set lock_timeout = '200ms' set jit = off as $$
#variable_conflict use_column
declare
    v_job text := 'job_p' || to_char(p_day, 'YYYYMMDD');
    v_outcome text := 'outcome_p' || to_char(p_day, 'YYYYMMDD');
    v_survivors bigint;
    v_ids bigint[];
begin
    if to_regclass('windlass.' || v_job) is null or to_regclass('windlass.' || v_outcome) is null then
        return false;
    end if;
    execute format('select count(*) from (select 1 from windlass.%I j left join windlass.%I o on o.id = j.id
        where o.id is null or o.purge_at is null or o.purge_at > clock_timestamp() limit $1) s', v_job, v_outcome)
        into v_survivors using p_survivors + 1;
    if v_survivors > p_survivors then
        return false;
    end if;
    execute format('alter table windlass.outcome detach partition windlass.%I', v_outcome);
    execute format('alter table windlass.job detach partition windlass.%I', v_job);
    perform set_config('windlass.packed', 'on', true);
    execute format('with o as (insert into windlass.outcome select * from windlass.%2$I o
                               where o.purge_at is null or o.purge_at > clock_timestamp() returning id)
        , j as (insert into windlass.job select j.* from windlass.%1$I j left join windlass.%2$I o on o.id = j.id
                where o.id is null or o.purge_at is null or o.purge_at > clock_timestamp() returning id)
        select array_agg(j.id) from j', v_job, v_outcome) into v_ids;
    perform set_config('windlass.packed', 'off', true);
    delete from windlass.event e where e.id >= windlass.week_bound(p_day) and e.id < windlass.week_bound(p_day + 7)
        and e.id <> all (coalesce(v_ids, '{}'));
    delete from windlass.progress e where e.id >= windlass.week_bound(p_day) and e.id < windlass.week_bound(p_day + 7)
        and e.id <> all (coalesce(v_ids, '{}'));
    delete from windlass.job_log e where e.id >= windlass.week_bound(p_day) and e.id < windlass.week_bound(p_day + 7)
        and e.id <> all (coalesce(v_ids, '{}'));
    delete from windlass.job_cost e where e.id >= windlass.week_bound(p_day) and e.id < windlass.week_bound(p_day + 7)
        and e.id <> all (coalesce(v_ids, '{}'));
    delete from windlass.checkpoint e where e.id >= windlass.week_bound(p_day)
        and e.id < windlass.week_bound(p_day + 7) and e.id <> all (coalesce(v_ids, '{}'));
    delete from windlass.edge e where e.child_id >= windlass.week_bound(p_day)
        and e.child_id < windlass.week_bound(p_day + 7) and e.child_id <> all (coalesce(v_ids, '{}'));
    delete from windlass.job_key e where e.id >= windlass.week_bound(p_day) and e.id < windlass.week_bound(p_day + 7)
        and e.id <> all (coalesce(v_ids, '{}')) and (e.until is null or e.until <= clock_timestamp());
    execute format('drop table windlass.%I', v_outcome);
    execute format('drop table windlass.%I', v_job);
    return true;
end $$;
