-- Ordering keys with jobs behind them and no holder; the range is every name that begins with `key:`.
SELECT DISTINCT g.tenant, substr(g.gate, 5)
FROM windlass_gated g
WHERE g.gate >= 'key:' AND g.gate < 'key;'
  AND NOT EXISTS (SELECT 1 FROM windlass_key_holder h WHERE h.tenant = g.tenant AND h.key = substr(g.gate, 5))
LIMIT ?1;
