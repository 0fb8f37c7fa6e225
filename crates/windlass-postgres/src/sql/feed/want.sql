-- Want status events for $1 seconds.
insert into windlass.feed_reader as r (id, until) values (1, clock_timestamp() + make_interval(secs => $1))
on conflict (id) do update set until = greatest(r.until, excluded.until)
