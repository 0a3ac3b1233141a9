-- For PostgreSQL.
-- Pages count by job what went wrong in the last day. The index of these runs holds what is counted, so that the rows are not read.
-- Job and reason change with the status only, which was part of the index before.
CREATE INDEX run_trouble_wide ON run (namespace_id, id) INCLUDE (job_id, status, reason)
    WHERE status IN ('failed', 'timed_out', 'cancelled', 'unknown', 'skipped');

DROP INDEX run_trouble;

ALTER INDEX run_trouble_wide RENAME TO run_trouble;
