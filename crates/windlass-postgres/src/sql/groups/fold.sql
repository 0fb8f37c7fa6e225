-- Adds the changes of counts to a batch that the caller has locked.
create or replace function windlass.fold_batch(p_batch bigint) returns void language plpgsql as $$
#variable_conflict use_column
declare
    d record;
begin
    with d as (delete from windlass.batch_delta d where d.batch_id = p_batch returning *)
    select sum(d.succeeded) as succeeded, sum(d.canceled) as canceled, sum(d.dead) as dead into d from d;
    if d.succeeded is not null then
        update windlass.batch b
        set succeeded = b.succeeded + d.succeeded, canceled = b.canceled + d.canceled, dead = b.dead + d.dead
        where b.id = p_batch;
    end if;
end $$;

-- Adds up the changes of these batches, or of all that have some if none is given. Answers those, and the sealed ones all of
-- whose jobs have ended, at most p_limit of each. Whoever is at a batch already is not waited for.
create or replace function windlass.fold_batches(p_ids bigint[], p_limit int) returns bigint[] language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_ids bigint[] := p_ids;
    b record;
begin
    if p_ids = '{}' then
        v_ids := array(select d.batch_id from windlass.batch_delta d group by d.batch_id order by 1 limit p_limit);
        delete from windlass.batch_delta d where d.batch_id = any (v_ids)
            and not exists (select 1 from windlass.batch k where k.id = d.batch_id);
    end if;
    for b in select k.id from windlass.batch k where k.id = any (v_ids) order by k.id for update skip locked loop
        perform windlass.fold_batch(b.id);
    end loop;
    return v_ids || array(
        select k.id from windlass.batch k
        where k.sealed_at is not null and k.completed_at is null and k.succeeded + k.canceled + k.dead >= k.total
        order by k.id limit p_limit);
end $$;

-- Completes a batch once, with its callback, given as a JSON array of one job or null. False if it is not to be completed.
create or replace function windlass.complete_batch(p_batch bigint, p_callback json) returns boolean language plpgsql as $$
#variable_conflict use_column
declare
    v_job bigint;
begin
    perform 1 from windlass.batch b where b.id = p_batch for update;
    perform windlass.fold_batch(p_batch);
    perform 1 from windlass.batch b
    where b.id = p_batch and b.sealed_at is not null and b.completed_at is null
      and b.succeeded + b.canceled + b.dead >= b.total;
    if not found then
        return false;
    end if;
    if p_callback is not null then
        -- Counted, never refused: it follows from work that was accepted.
        select s.id into v_job from windlass.store_jobs_within(p_callback, false, false) s;
    end if;
    update windlass.batch b set completed_at = clock_timestamp(), callback_job = v_job where b.id = p_batch;
    return true;
end $$;

-- Removes batches that were completed p_kept ago, at most p_limit, with their parts. Answers how many.
create or replace function windlass.clean_batches(p_kept interval, p_limit int) returns int language plpgsql as $$
#variable_conflict use_column
declare
    v_ids bigint[];
begin
    v_ids := array(select b.id from windlass.batch b where b.completed_at <= clock_timestamp() - p_kept
                   order by b.completed_at limit p_limit for update skip locked);
    delete from windlass.batch_part p where p.batch_id = any (v_ids);
    delete from windlass.batch_delta d where d.batch_id = any (v_ids);
    delete from windlass.batch b where b.id = any (v_ids);
    return cardinality(v_ids);
end $$;
