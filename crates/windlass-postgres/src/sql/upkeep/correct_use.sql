-- Puts right what was stored by processes that had not heard of a quota yet, and makes the rows of tenants that are only
-- counted by deltas. All in one snapshot, in which a job and its count are both there or both not. Answers how many rows.
create or replace function windlass.correct_use() returns int language plpgsql set jit = off set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare
    r record;
    v_rows int := 0;
begin
    for r in
        with l as (
            select r.tenant_id, cardinality(r.ids)::bigint as n from windlass.ready r
            union all select s.tenant_id, 1 from windlass.scheduled s
            union all select g.tenant_id, 1 from windlass.gated g
            union all select j.tenant_id, 1 from windlass.lease l cross join unnest(l.ids) x(id)
                      cross join lateral (select tenant_id from windlass.job where job.id = x.id offset 0) j),
        live as (select l.tenant_id, sum(l.n)::bigint as n from l group by 1),
        d as (select e.tenant_id, sum(e.jobs)::bigint as jobs from windlass.tenant_use_delta e group by 1)
        select coalesce(u.tenant_id, d.tenant_id) as tenant_id, u.tenant_id is null as missing,
               coalesce(live.n, 0) as live, windlass.ended_of(coalesce(u.tenant_id, d.tenant_id)) as ended,
               coalesce(live.n, 0) - (u.jobs + coalesce(d.jobs, 0) - (windlass.ended_of(u.tenant_id) - u.ended)) as drift
        from windlass.tenant_use u full join d on d.tenant_id = u.tenant_id
        left join live on live.tenant_id = coalesce(u.tenant_id, d.tenant_id)
        order by 1
    loop
        continue when not r.missing and r.drift = 0;
        begin
            if r.missing then
                insert into windlass.tenant_use (tenant_id, jobs, ended, bytes, tokens, filled_at)
                select r.tenant_id, r.live - (select coalesce(sum(e.jobs), 0) from windlass.tenant_use_delta e
                                              where e.tenant_id = r.tenant_id),
                       r.ended, windlass.unfinished_bytes(r.tenant_id), coalesce(q.burst, 0), clock_timestamp()
                from windlass.quota_of(r.tenant_id) q on conflict do nothing;
            else
                update windlass.tenant_use u set jobs = u.jobs + r.drift where u.tenant_id = r.tenant_id;
            end if;
            v_rows := v_rows + 1;
        exception when lock_not_available then
            -- Somebody holds this tenant's row; the next look puts it right.
            null;
        end;
    end loop;
    return v_rows;
end $$;
