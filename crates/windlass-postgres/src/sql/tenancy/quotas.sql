-- Every policy, with the version of them all. The default one has the key of ones.
select v.n, q.tenant_id, q.weight, q.queued, q.rate, q.burst, q.running, q.bytes
from windlass.quota_version v left join windlass.quota q on true
