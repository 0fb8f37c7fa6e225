-- Where a job waits: in its own queue, or among the suspects once a node was lost with it; apart when one was again.
create or replace function windlass.home_queue(p_queue text, p_recoveries int) returns text language sql immutable as
$$ select case when p_recoveries > 1 then 'suspect-again:' when p_recoveries > 0 then 'suspect:' else '' end || p_queue $$;

-- The rank of a priority. The lowest priority has no negative counterpart.
create or replace function windlass.rank_of(p_priority smallint) returns smallint language sql immutable as
$$ select least(32767, -p_priority::int)::smallint $$;

-- The last position is that of everybody who would stand behind it: a line that something else has moved there takes jobs.
create or replace function windlass.position_of(p_position bigint) returns bigint language sql immutable as
$$ select least(p_position, 4611686018427387904) $$;
