-- What reports read beside the counts of runs, and when they are sent, for SQLite.

-- How often runs of a job failed with one message on one day.
CREATE TABLE failure_stat (
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
    PRIMARY KEY (job_id, day_at_ms, fold_key)
);

CREATE INDEX failure_stat_namespace ON failure_stat (namespace_id, day_at_ms);

CREATE INDEX failure_stat_day ON failure_stat (day_at_ms);

-- When the weekly report of a namespace is sent: at most one row for each.
CREATE TABLE report_schedule (
    -- The tenant.
    namespace_id INTEGER NOT NULL PRIMARY KEY,
    -- Counts its definitions from 1.
    version BIGINT NOT NULL,
    -- The definition, as JSON.
    spec TEXT NOT NULL,
    -- Who saved it.
    author TEXT NOT NULL
        CHECK (length(author) <= 255),
    -- When it was last saved.
    updated_at_ms BIGINT NOT NULL,
    -- When the next report is due; NULL where there is none.
    next_at_ms BIGINT,
    -- When the last report was written; NULL before the first.
    sent_at_ms BIGINT
);

CREATE INDEX report_schedule_next ON report_schedule (next_at_ms);
