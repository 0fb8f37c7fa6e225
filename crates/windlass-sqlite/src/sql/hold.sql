-- Take the lease ?1 for node ?2 until ?4, or renew it, at ?3; no row while another node holds it.
INSERT INTO windlass_holding (name, node, epoch, until) VALUES (?1, ?2, 1, ?4)
ON CONFLICT (name) DO UPDATE SET epoch = epoch + (node IS NOT ?2), node = ?2, until = ?4
WHERE node IS NULL OR node = ?2 OR until <= ?3
RETURNING epoch, position
