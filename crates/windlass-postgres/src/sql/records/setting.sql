-- A shared value.
select value from windlass.setting where name = $1 and (until is null or until > clock_timestamp())
