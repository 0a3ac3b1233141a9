-- Which jobs were saved or deleted of late, for those who watch, for MySQL and MariaDB. A claim does not write to job: edits
-- alone pay.
-- MySQL has no IF NOT EXISTS for an index, and this must be able to run again.

SET @has_job_saved = (SELECT COUNT(*) FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'job' AND index_name = 'job_saved');

SET @add_job_saved = IF(@has_job_saved = 0, 'CREATE INDEX job_saved ON job (updated_at_ms)', 'DO 0');

PREPARE add_job_saved FROM @add_job_saved;

EXECUTE add_job_saved;

DEALLOCATE PREPARE add_job_saved;
