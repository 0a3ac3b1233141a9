-- Which namespaces have a message that is due, without a look at each message of the others, for MySQL.
-- MySQL has no IF NOT EXISTS for an index, and this must be able to run again.

SET @has_index = (SELECT COUNT(*) FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'outbox' AND index_name = 'outbox_turn');

SET @add_index = IF(@has_index = 0, 'CREATE INDEX outbox_turn ON outbox (namespace_id, due_at_ms)', 'DO 0');

PREPARE add_index FROM @add_index;

EXECUTE add_index;

DEALLOCATE PREPARE add_index;
