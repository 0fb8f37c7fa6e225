-- Keep a webhook.
INSERT INTO windlass_webhook (id, tenant, url, events, handler, secret, sealed, active_since, created_at, created_by)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9)
