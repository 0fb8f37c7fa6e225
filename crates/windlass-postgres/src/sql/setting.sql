-- A shared value.
select value from windlass.setting where name = $1
