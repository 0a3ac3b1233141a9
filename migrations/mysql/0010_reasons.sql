-- Why a run stands where it stands, with parameters, for MySQL and MariaDB.

-- The parameters of the reason, and what an open run waits for, as a small JSON object; NULL where there are none.
SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'run' AND column_name = 'detail');

SET @add_column = IF(@has_column = 0, 'ALTER TABLE run ADD COLUMN detail TEXT', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;

-- The reason of the verdict when the run ends by the request to cancel it; NULL for a request by a user or a program.
SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'run' AND column_name = 'cancel_reason');

SET @add_column = IF(@has_column = 0, 'ALTER TABLE run ADD COLUMN cancel_reason VARCHAR(16)', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;

-- The parameters of the reason.
SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'run_attempt' AND column_name = 'detail');

SET @add_column = IF(@has_column = 0, 'ALTER TABLE run_attempt ADD COLUMN detail TEXT', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;
