-- The recent fires of jobs, for MySQL and MariaDB: what the claim strategy least_count goes by.

-- A count of the job's fires in which each weighs half as much after every ten minutes, as of recent_at_ms, in thousandths of a fire.
SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'job_due' AND column_name = 'recent_fires');

SET @add_column = IF(@has_column = 0, 'ALTER TABLE job_due ADD COLUMN recent_fires BIGINT NOT NULL DEFAULT 0', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;

-- When it was counted last.
SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'job_due' AND column_name = 'recent_at_ms');

SET @add_column = IF(@has_column = 0, 'ALTER TABLE job_due ADD COLUMN recent_at_ms BIGINT NOT NULL DEFAULT 0', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;

-- The same of all jobs that the node is home to, by its last count.
SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'node' AND column_name = 'recent_fires');

SET @add_column = IF(@has_column = 0, 'ALTER TABLE node ADD COLUMN recent_fires BIGINT NOT NULL DEFAULT 0', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;
