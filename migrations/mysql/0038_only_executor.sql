-- Runs that go to one executor by their caller's choice, for MySQL and MariaDB.

-- Stable name of the only executor that may have the run; NULL where the job's router chooses.
SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'run' AND column_name = 'only_executor');

SET @add_column = IF(@has_column = 0, 'ALTER TABLE run ADD COLUMN only_executor VARCHAR(255)', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;
