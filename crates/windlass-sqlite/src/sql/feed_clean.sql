-- Of the oldest ?3 status events, remove those from before ?1 and those up to sequence ?2.
DELETE FROM windlass_feed WHERE sequence IN (
    SELECT sequence FROM (SELECT sequence, at FROM windlass_feed ORDER BY sequence LIMIT ?3) WHERE at < ?1 OR sequence <= ?2)
