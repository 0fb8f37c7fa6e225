-- Keep value $2 under name $1 for good unless there is one; answer with the one that is kept.
insert into windlass.setting as s (name, value) values ($1, $2)
on conflict (name) do update set
    value = case when s.until <= clock_timestamp() then excluded.value else s.value end,
    until = case when s.until <= clock_timestamp() then null else s.until end
returning value
