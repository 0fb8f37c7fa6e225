-- Jobs by status in buckets of $1 seconds since $2, oldest first. depth_pkey.
select at, counts from windlass.depth where resolution = $1 and at >= $2 order by at
