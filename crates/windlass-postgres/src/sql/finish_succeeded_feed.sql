-- The same as finish_succeeded.sql, and keeps status events of what is accepted; the outcomes tell the attempts.
with f as materialized (
    select windlass.finish_succeeded($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) as places),
e as (
    insert into windlass.feed (id, status)
    select ($6)[j.n], 6 from f cross join unnest(f.places) p(place)
    cross join lateral generate_series(($4)[p.place], ($5)[p.place]) j(n))
select places from f
