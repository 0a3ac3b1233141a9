-- Processes of executors on the host of a node, for MySQL and MariaDB: a node that starts again sees which of them are gone.
-- MySQL has no IF NOT EXISTS for a column, and this must be able to run again.

SET @has_process = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'executor_session' AND column_name = 'process');

-- process: The executor's process, if the node saw it on its own host: boot id, pid namespace, pid, and start in clock ticks since the boot.
SET @add_process = IF(@has_process = 0, 'ALTER TABLE executor_session ADD COLUMN process VARCHAR(120)', 'DO 0');

PREPARE add_process FROM @add_process;

EXECUTE add_process;

DEALLOCATE PREPARE add_process;
