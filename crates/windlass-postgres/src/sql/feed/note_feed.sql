-- Keeps status events, if somebody wants them. What plainly succeeds does not ask here: its node knows by the survey.
create or replace function windlass.note_feed(p_ids bigint[], p_status int, p_attempts int[]) returns void language plpgsql as $$
#variable_conflict use_column
begin
    insert into windlass.feed (id, status, attempt)
    select x.id, p_status, x.attempt from unnest(p_ids, p_attempts) x(id, attempt)
    where exists (select 1 from windlass.feed_reader r where r.until > clock_timestamp());
end $$;
