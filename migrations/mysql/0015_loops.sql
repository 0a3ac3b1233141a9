-- What came of the last ticks of a node's loops, for MySQL and MariaDB.
-- MySQL has no IF NOT EXISTS for a column, and this must be able to run again.

SET @has_loops = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'node' AND column_name = 'loops');

-- loops: JSON, one entry for each loop; NULL from a server that did not say it.
SET @add_loops = IF(@has_loops = 0, 'ALTER TABLE node ADD COLUMN loops TEXT', 'DO 0');

PREPARE add_loops FROM @add_loops;

EXECUTE add_loops;

DEALLOCATE PREPARE add_loops;
