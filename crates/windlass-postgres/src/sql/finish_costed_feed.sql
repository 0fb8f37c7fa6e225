-- The same as finish_costed.sql, and keeps status events of what is accepted.
with f as materialized (
    select o_n, o_status from windlass.finish_costed($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)),
e as (
    insert into windlass.feed (id, status, attempt)
    select ($4)[u.n], u.status, ($5)[u.n] from f cross join unnest(f.o_n, f.o_status) u(n, status) order by u.n)
select o_n, o_status from f
