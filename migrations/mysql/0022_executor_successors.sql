-- Which executors succeeded one, without reading all of them, for MySQL.
-- MySQL has no IF NOT EXISTS for an index, and this must be able to run again.

SET @has_index = (SELECT COUNT(*) FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'executor' AND index_name = 'executor_predecessor');

SET @add_index = IF(@has_index = 0, 'CREATE INDEX executor_predecessor ON executor (predecessor_id)', 'DO 0');

PREPARE add_index FROM @add_index;

EXECUTE add_index;

DEALLOCATE PREPARE add_index;
