-- For SQLite.
-- The statements that look for open or unsuccessful runs read open_run and unsuccessful_run. The indexes of run that are left have no
-- column and no condition that changes when a run is sent, waits, moves or ends.
DROP INDEX IF EXISTS run_open;

DROP INDEX IF EXISTS run_open_job;

DROP INDEX IF EXISTS run_open_list;

DROP INDEX IF EXISTS run_held;

DROP INDEX IF EXISTS run_trouble;
