-- How many ready chunks there are, counted up to $1.
select count(*) from (select 1 from windlass.ready limit $1) x
