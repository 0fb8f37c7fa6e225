-- The lowest machine slot that no process has and that is not in quarantine at ?1; ?2 slots can be leased.
WITH RECURSIVE slots (slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM slots WHERE slot + 1 < ?2)
SELECT slot FROM slots
WHERE slot NOT IN (SELECT slot FROM windlass_node)
  AND slot NOT IN (SELECT slot FROM windlass_slot WHERE free_at > ?1)
LIMIT 1;
