-- The general way in: a JSON array of jobs, as the library writes them. Only `handler` is required. In order of input,
-- each with its id, or with the id of the job that has its key.
create or replace function windlass.submit_jobs(p_jobs json) returns table (id bigint, duplicate boolean) language plpgsql as $$
#variable_conflict use_column
begin
    perform windlass.check_jobs(p_jobs);
    perform windlass.check_parents(p_jobs);
    return query select s.id, s.duplicate from windlass.store_jobs(p_jobs) s;
end $$;

-- Jobs of any kind, within the quotas, for callers who are not the engine.
create or replace function windlass.submit_jobs_within(p_jobs json) returns table (id bigint, duplicate boolean) language plpgsql as $$
#variable_conflict use_column
begin
    perform windlass.check_jobs(p_jobs);
    perform windlass.check_parents(p_jobs);
    return query select s.id, s.duplicate from windlass.store_jobs_within(p_jobs, false, true) s;
end $$;
