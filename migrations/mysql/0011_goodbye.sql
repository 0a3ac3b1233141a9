-- Executors that have said goodbye, for MySQL and MariaDB: nobody has to wait for them.
-- MySQL has no IF NOT EXISTS for a column, and this must be able to run again.

SET @has_has_left = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'executor_session' AND column_name = 'has_left');

-- has_left: 1 where the executor has ended in order: it has nothing in hand and takes nothing more.
SET @add_has_left = IF(@has_has_left = 0, 'ALTER TABLE executor_session ADD COLUMN has_left SMALLINT NOT NULL DEFAULT 0', 'DO 0');

PREPARE add_has_left FROM @add_has_left;

EXECUTE add_has_left;

DEALLOCATE PREPARE add_has_left;
