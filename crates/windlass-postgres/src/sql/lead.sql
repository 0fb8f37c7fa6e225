-- Take the lead $1 for node $2 and $3 seconds, or renew it; no row while another node has it.
insert into windlass.lead as l (name, node_id, term, until)
values ($1, $2, 1, clock_timestamp() + make_interval(secs => $3))
on conflict (name) do update
set term = l.term + case when l.node_id = $2 then 0 else 1 end, node_id = $2, until = excluded.until
where l.node_id = $2 or l.until <= clock_timestamp()
returning term, cursor
