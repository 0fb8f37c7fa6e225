-- Takes a waiting job out of its place. Answers its counts, or nulls if it does not wait (or, with p_fresh, has started
-- before).
create or replace function windlass.take_waiting(
    p_id bigint, p_tenant uuid, p_fresh boolean, out o_failed integer, out o_recoveries integer)
language plpgsql as $$
#variable_conflict use_column
declare
    c record;
begin
    delete from windlass.scheduled s where s.id = p_id and not (p_fresh and s.resumed)
    returning s.failed, s.recoveries into o_failed, o_recoveries;
    if found then return; end if;
    delete from windlass.gated g where g.id = p_id and not (p_fresh and g.resumed)
    returning g.failed, g.recoveries into o_failed, o_recoveries;
    if found then return; end if;
    -- No index leads from a job to its chunk: chunks live shortly, and an index would cost every job.
    select r.ctid, r.failed, r.recoveries, cardinality(r.ids) as jobs into c from windlass.ready r
    where r.tenant_id = p_tenant and r.ids @> array[p_id]
      and not (p_fresh and r.resumed) limit 1 for update;
    if not found then return; end if;
    if c.jobs = 1 then
        delete from windlass.ready r where r.ctid = c.ctid;
    else
        update windlass.ready r set ids = array_remove(r.ids, p_id), first = (array_remove(r.ids, p_id))[1]
        where r.ctid = c.ctid;
    end if;
    if not found then
        raise exception 'windlass: the chunk of job % moved while it was locked', p_id using errcode = '40001';
    end if;
    o_failed := c.failed;
    o_recoveries := c.recoveries;
end $$;
