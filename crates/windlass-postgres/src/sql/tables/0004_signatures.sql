-- Dead letters by the signature of their error. Successes are no part of it, so they pay nothing for it.
create index outcome_signature on windlass.outcome (windlass.json_text(error, 'signature'), id) where status = 8;
