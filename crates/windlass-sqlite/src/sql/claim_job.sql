-- What an attempt needs to know of its job.
SELECT tenant, handler, queue, priority, created_at, ordering_key, batch, correlation_id, tags, spec, payload
FROM windlass_job WHERE id = ?1;
