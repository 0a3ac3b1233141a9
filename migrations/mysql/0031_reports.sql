-- What reports read beside the counts of runs, and when they are sent, for MySQL 8 and MariaDB.

-- How often runs of a job failed with one message on one day.
CREATE TABLE IF NOT EXISTS failure_stat (
    -- The job.
    job_id BIGINT NOT NULL,
    -- When the day begins, in UTC.
    day_at_ms BIGINT NOT NULL,
    -- A hash of the message; 0 for the messages of the day that are counted together.
    fold_key BIGINT NOT NULL,
    -- The tenant.
    namespace_id BIGINT NOT NULL,
    -- The app of the first such run.
    app_id BIGINT NOT NULL,
    -- The message without numbers, ids and instants, at most 200 bytes; empty for those that are counted together.
    message TEXT NOT NULL,
    -- How many runs.
    run_count BIGINT NOT NULL,
    -- The newest of them.
    newest_run_id BIGINT NOT NULL,
    PRIMARY KEY (job_id, day_at_ms, fold_key),
    KEY failure_stat_namespace (namespace_id, day_at_ms),
    KEY failure_stat_day (day_at_ms)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- When the weekly report of a namespace is sent: at most one row for each.
CREATE TABLE IF NOT EXISTS report_schedule (
    -- The tenant.
    namespace_id BIGINT NOT NULL PRIMARY KEY,
    -- Counts its definitions from 1.
    version BIGINT NOT NULL,
    -- The definition, as JSON.
    spec MEDIUMTEXT NOT NULL,
    -- Who saved it.
    author VARCHAR(255) NOT NULL,
    -- When it was last saved.
    updated_at_ms BIGINT NOT NULL,
    -- When the next report is due; NULL where there is none.
    next_at_ms BIGINT,
    -- When the last report was written; NULL before the first.
    sent_at_ms BIGINT,
    KEY report_schedule_next (next_at_ms)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
