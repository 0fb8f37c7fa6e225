-- Jobs with everything that tells where they are; the caller adds which. Ready and running ones are those without an
-- end, a time or a gate.
SELECT j.id, j.tenant, j.handler, j.queue, j.priority, j.created_at, j.born, j.run_at, j.ordering_key, j.batch,
       j.correlation_id, j.tags, j.spec,
       o.status, o.at, o.attempt, o.failed, o.recoveries, o.node, o.started_at, o.reason, o.note, o.error, o.output,
       s.due, s.kind, g.gate, g.due, p.sequence, p.percent, p.message, d.replayed_by, d.replayed_at, d.replayed_as,
       EXISTS (SELECT 1 FROM windlass_cancel c WHERE c.job = j.id), p.updated_at, k.cents, k.units
FROM windlass_job j
LEFT JOIN windlass_outcome o ON o.job = j.id
LEFT JOIN windlass_scheduled s ON s.job = j.id
LEFT JOIN windlass_gated g ON g.job = j.id
LEFT JOIN windlass_progress p ON p.job = j.id
LEFT JOIN windlass_job_cost k ON k.job = j.id
LEFT JOIN windlass_dead_letter d ON d.job = j.id
