-- Note that the handlers of node ?1 were served until ?2.
INSERT INTO windlass_served (name, at)
SELECT h.value, ?2 FROM windlass_node n, json_each(CASE WHEN json_valid(n.info) THEN n.info ELSE '{}' END, '$.handlers') h
WHERE n.node = ?1 AND h.type = 'text'
ON CONFLICT (name) DO UPDATE SET at = max(at, excluded.at);
