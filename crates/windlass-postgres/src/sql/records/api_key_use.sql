-- Note that API keys $1 were used at $2, each at most once a minute however many nodes see it.
update windlass.api_key k set last_used_at = u.at from unnest($1, $2) u(id, at)
where k.id = u.id and (k.last_used_at is null or k.last_used_at < u.at - interval '1 minute')
  -- Whoever holds a row for long holds up no other step of maintenance.
  and set_config('lock_timeout', '500ms', true) is not null
