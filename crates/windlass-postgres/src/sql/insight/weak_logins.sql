-- Ways to log in over a network without a password, or with one that is not protected. Only superusers may read them.
select h.line_number::int, h.type, h.auth_method from pg_hba_file_rules h
where h.type like 'host%' and h.auth_method in ('trust', 'password') and h.error is null
order by h.line_number limit 5
