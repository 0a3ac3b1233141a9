-- Which namespaces have a message that is due, without a look at each message of the others, for PostgreSQL.

CREATE INDEX outbox_turn ON outbox (namespace_id, due_at_ms);
