-- Dead letters by the signature of their error. Successes are no part of it, so they pay nothing for it. An error that
-- something else than Windlass wrote may have an escaped NUL in it, which the server keeps but cannot take apart: asked
-- for before, so that no finish fails because of this index.
create index outcome_signature on windlass.outcome
    ((case when strpos(error::text, '\u0000') = 0 then error ->> 'signature' end), id) where status = 8;
