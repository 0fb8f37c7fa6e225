-- Put the counts of limited tenants right. Function windlass.correct_use, migration 9. Reads all live tables.
select windlass.correct_use()
