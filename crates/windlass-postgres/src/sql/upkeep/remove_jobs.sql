-- Removes ended jobs and everything that belongs to them. A unique window outlives its job.
create or replace function windlass.remove_jobs(p_ids bigint[]) returns void language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
begin
    delete from windlass.outcome o where o.id = any (p_ids);
    delete from windlass.job j where j.id = any (p_ids);
    perform windlass.remove_side_rows(p_ids);
end $$;

create or replace function windlass.remove_side_rows(p_ids bigint[]) returns void language plpgsql
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
begin
    delete from windlass.event e where e.id = any (p_ids);
    delete from windlass.progress p where p.id = any (p_ids);
    delete from windlass.job_log l where l.id = any (p_ids);
    delete from windlass.job_cost c where c.id = any (p_ids);
    delete from windlass.checkpoint c where c.id = any (p_ids);
    delete from windlass.edge e where e.child_id = any (p_ids);
    delete from windlass.job_key k where k.id = any (p_ids) and (k.until is null or k.until <= clock_timestamp());
end $$;
