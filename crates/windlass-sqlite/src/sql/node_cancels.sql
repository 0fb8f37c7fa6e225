-- Cancels that node ?1 has to carry out.
SELECT c.job, c.lease FROM windlass_cancel c JOIN windlass_lease l ON l.lease = c.lease WHERE l.node = ?1;
