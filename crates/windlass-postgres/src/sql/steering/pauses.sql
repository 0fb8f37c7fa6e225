-- The pauses in force.
select target, by, reason, at from windlass.pause order by target
