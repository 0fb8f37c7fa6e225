-- The largest job id the file has ever held, or null.
SELECT max(id) FROM (SELECT max(id) AS id FROM windlass_job UNION ALL SELECT value FROM windlass_mark WHERE name = 'job');
