-- Which of the jobs $1 are there, to repeat a submit whose outcome was unknown. The jobs' primary key.
select id, tenant_id, handler from windlass.job where id = any ($1)
