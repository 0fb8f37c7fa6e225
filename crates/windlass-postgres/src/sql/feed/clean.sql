-- Of the first $2 status events after $1, remove those older than $3 seconds and those beyond the newest $4; feed_pkey.
with d as (
    delete from windlass.feed f where f.sequence = any (array(
        select a.sequence from (select b.sequence, b.at from windlass.feed b where b.sequence > $1
                                order by b.sequence limit $2 for update skip locked) a
        where a.at < clock_timestamp() - make_interval(secs => $3)
           or a.sequence <= (select s.last_value from windlass.feed_sequence_seq s) - $4))
    returning f.sequence)
select count(*), max(d.sequence) from d
