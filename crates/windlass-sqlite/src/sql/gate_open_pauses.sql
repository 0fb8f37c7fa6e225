-- Jobs parked by a pause that is over; the range is every name that begins with `pause:`.
SELECT job, tenant, queue, priority, failed, recoveries, resumed
FROM windlass_gated
WHERE gate >= 'pause:' AND gate < 'pause;' AND substr(gate, 7) NOT IN (SELECT target FROM windlass_pause)
ORDER BY arrival, job LIMIT ?1;
