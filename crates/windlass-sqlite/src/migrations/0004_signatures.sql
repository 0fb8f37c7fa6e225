-- Dead letters by the signature of their error. Successes are no part of it, so they pay nothing for it.
CREATE INDEX windlass_outcome_by_signature ON windlass_outcome (error ->> 'signature') WHERE status = 8;
