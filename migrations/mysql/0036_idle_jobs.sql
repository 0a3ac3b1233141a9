-- For MySQL and MariaDB. This must be able to run again.
-- Jobs that will never fire by themselves: pages list them, beside thousands that will. There are no partial indexes here, so they have
-- a column that the others don't need.
SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'job_due' AND column_name = 'is_idle');

SET @add_column = IF(@has_column = 0, 'ALTER TABLE job_due
    ADD COLUMN is_idle SMALLINT AS (CASE WHEN next_fire_at_ms IS NULL AND is_over = 1 THEN 1 END) VIRTUAL, ADD KEY job_due_idle (is_idle)', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;
