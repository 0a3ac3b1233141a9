-- For MySQL and MariaDB. This must be able to run again.
-- The jobs of an app by name: lists and alert rules of one app read them among those of all others. It takes the place of the index that
-- the database made for the foreign key.
SET @has_index = (SELECT COUNT(*) FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'job' AND index_name = 'job_app');

SET @add_index = IF(@has_index = 0, 'CREATE INDEX job_app ON job (app_id, name)', 'DO 0');

PREPARE add_index FROM @add_index;

EXECUTE add_index;

DEALLOCATE PREPARE add_index;
