-- When handler or queue ?1 was last served; ?2, which is now, while a registered node has the handler.
SELECT CASE
    WHEN EXISTS (SELECT 1 FROM windlass_node n,
                 json_each(CASE WHEN json_valid(n.info) THEN n.info ELSE '{}' END, '$.handlers') h WHERE h.value = ?1) THEN ?2
    ELSE (SELECT at FROM windlass_served WHERE name = ?1)
END;
