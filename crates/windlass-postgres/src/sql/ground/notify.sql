-- Wake other processes; $1 says who speaks. Nothing is lost with it, so its commit does not wait for the disk: until it
-- has committed, no other process can notify.
select set_config('synchronous_commit', 'off', true), pg_notify('windlass_wake', $1)
