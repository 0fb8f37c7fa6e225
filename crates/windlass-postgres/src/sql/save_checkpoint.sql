-- Keep a checkpoint of a held job. Function windlass.save_checkpoint, migration 4; lease_pkey, checkpoint_pkey.
select windlass.save_checkpoint($1, $2, $3, $4)
