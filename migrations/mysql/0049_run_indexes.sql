-- For MySQL and MariaDB. Each statement can be repeated.
-- The statements that look for open or unsuccessful runs read open_run and unsuccessful_run. The indexes of run that are left have no
-- column that changes when a run is sent, waits, moves or ends.
SET @has_index = (SELECT COUNT(*) FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'run' AND index_name = 'run_open');

SET @drop_index = IF(@has_index = 0, 'DO 0', 'DROP INDEX run_open ON run');

PREPARE drop_index FROM @drop_index;

EXECUTE drop_index;

DEALLOCATE PREPARE drop_index;

SET @has_index = (SELECT COUNT(*) FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'run' AND index_name = 'run_open_job');

SET @drop_index = IF(@has_index = 0, 'DO 0', 'DROP INDEX run_open_job ON run');

PREPARE drop_index FROM @drop_index;

EXECUTE drop_index;

DEALLOCATE PREPARE drop_index;

SET @has_index = (SELECT COUNT(*) FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'run' AND index_name = 'run_trouble');

SET @drop_index = IF(@has_index = 0, 'DO 0', 'DROP INDEX run_trouble ON run');

PREPARE drop_index FROM @drop_index;

EXECUTE drop_index;

DEALLOCATE PREPARE drop_index;
