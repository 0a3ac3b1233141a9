-- The sessions of a server whose locks nothing else ends, for MySQL and MariaDB. MariaDB has a time limit that does.
-- MySQL has no IF NOT EXISTS for a column, and this must be able to run again.

SET @has_connection_ids = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'node' AND column_name = 'connection_ids');

-- connection_ids: The sessions that this server has in the database, where that has no time limit of its own for an idle transaction: once the lease is over, another server ends them. Numbers with commas between them.
SET @add_connection_ids = IF(@has_connection_ids = 0, 'ALTER TABLE node ADD COLUMN connection_ids TEXT', 'DO 0');

PREPARE add_connection_ids FROM @add_connection_ids;

EXECUTE add_connection_ids;

DEALLOCATE PREPARE add_connection_ids;
