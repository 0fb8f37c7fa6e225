-- Fold counter deltas into counters. Function windlass.fold_counters, migration 6; counter_pkey.
select windlass.fold_counters($1)
