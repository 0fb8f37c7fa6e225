-- Take the lead ?1 for node ?2 until ?4, or renew it, at ?3; no row while another node has it.
INSERT INTO windlass_lead (name, node, term, until) VALUES (?1, ?2, 1, ?4)
ON CONFLICT (name) DO UPDATE SET term = term + (node <> ?2), node = ?2, until = ?4 WHERE node = ?2 OR until <= ?3
RETURNING term, cursor
