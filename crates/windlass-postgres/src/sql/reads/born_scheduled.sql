-- Whether job $1 had a start time ahead when it was submitted. Primary key of job by week.
select run_at is not null from windlass.job where id = $1
