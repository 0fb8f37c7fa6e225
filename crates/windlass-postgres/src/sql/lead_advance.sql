-- Keep that the lead $1 has come to $3, if its term is still $2.
update windlass.lead set cursor = $3 where name = $1 and term = $2 returning true
