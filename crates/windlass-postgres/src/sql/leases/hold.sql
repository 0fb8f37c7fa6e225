-- Take the lease $1 for node $2 and $3 seconds, or renew it; no row while another node holds it.
insert into windlass.holding as h (name, node_id, epoch, until)
select $1, $2, 1, clock_timestamp() + make_interval(secs => $3)
-- Whoever holds the row for long holds up no other step of maintenance.
where set_config('lock_timeout', '500ms', true) is not null
on conflict (name) do update
set epoch = h.epoch + case when h.node_id = $2 then 0 else 1 end, node_id = $2, until = excluded.until
where h.node_id is null or h.node_id = $2 or h.until <= clock_timestamp()
returning epoch, position
