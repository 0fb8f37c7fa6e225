-- Keep value $2 under name $1 unless there is one; answer with the one that is kept.
insert into windlass.setting as s (name, value) values ($1, $2) on conflict (name) do update set value = s.value returning value
