-- For PostgreSQL.
-- The statements that look for open or unsuccessful runs read open_run and unsuccessful_run. The indexes of run that are left have no
-- column and no condition that changes when a run is sent, waits, moves or ends, so that such a change leaves the indexes as they are.
DROP INDEX IF EXISTS run_open;

DROP INDEX IF EXISTS run_open_job;

DROP INDEX IF EXISTS run_open_list;

DROP INDEX IF EXISTS run_held;

DROP INDEX IF EXISTS run_trouble;

-- An update leaves the indexes as they are only if the page has room for the new version of the row. The setting applies to new pages.
ALTER TABLE run SET (fillfactor = 50);
