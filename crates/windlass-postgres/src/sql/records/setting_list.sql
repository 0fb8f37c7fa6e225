-- The values kept for a time that is not over, whose names begin with $1, from the last name on.
select name, value from windlass.setting
where starts_with(name, $1) and until > clock_timestamp()
order by name collate "C" desc limit $2
