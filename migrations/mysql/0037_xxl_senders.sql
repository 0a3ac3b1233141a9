-- For MySQL and MariaDB. This must be able to run again.
-- The node that an attempt was sent from reads its log; the rows that exist have none, and are read by another.
SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'xxl_run' AND column_name = 'node_id');

SET @add_column = IF(@has_column = 0, 'ALTER TABLE xxl_run ADD COLUMN node_id BIGINT NOT NULL DEFAULT 0', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;
