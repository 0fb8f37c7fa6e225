-- Keep value $2 under name $1 for $3 seconds, in place of the one that is there, and forget what is over.
with over as (
    delete from windlass.setting o where o.name = any (array(
        select e.name from windlass.setting e where e.until <= clock_timestamp() and e.name <> $1
        for update skip locked)))
insert into windlass.setting (name, value, until) values ($1, $2, clock_timestamp() + make_interval(secs => $3))
on conflict (name) do update set value = excluded.value, until = excluded.until
