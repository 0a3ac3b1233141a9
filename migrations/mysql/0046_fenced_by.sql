-- Which node fenced a lease, for MySQL and MariaDB.

-- The node that fenced the last lease of this one and so got its limits; 0 if no node did. Counts only while the lease is fenced.
SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'node' AND column_name = 'fenced_by');

SET @add_column = IF(@has_column = 0, 'ALTER TABLE node ADD COLUMN fenced_by BIGINT NOT NULL DEFAULT 0', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;
