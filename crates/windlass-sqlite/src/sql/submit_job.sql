-- Store one job. A second one with the same id stores nothing, so that a submit whose outcome was unknown can be repeated.
INSERT INTO windlass_job (id, tenant, handler, queue, priority, created_at, born, run_at, ordering_key, batch,
                          correlation_id, tags, spec, payload)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
ON CONFLICT (id) DO NOTHING;
