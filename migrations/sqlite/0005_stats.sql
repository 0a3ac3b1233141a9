-- Counts of runs per job and hour, for SQLite: what is left of the ledger when runs are gone, and what charts read.

-- How many runs of a job ended how, of those planned for an hour.
CREATE TABLE run_stat (
    -- The job.
    job_id INTEGER NOT NULL,
    -- The hour in which the runs were planned: when it begins.
    hour_at_ms BIGINT NOT NULL,
    -- Their verdict.
    status TEXT NOT NULL
        CHECK (status IN ('succeeded', 'failed', 'timed_out', 'cancelled', 'unknown', 'skipped')),
    -- How many; a row of the ledger that stands for a span of fires counts as all of them. Shards don't count, their whole does.
    run_count BIGINT NOT NULL,
    -- How long all of their last attempts took together, from the start of the handler to its end.
    duration_ms BIGINT NOT NULL,
    PRIMARY KEY (job_id, hour_at_ms, status)
);

CREATE INDEX run_stat_hour ON run_stat (hour_at_ms);

-- Runs behind the cursor whose verdict was not known when it passed, or may still become another one.
CREATE TABLE run_stat_open (
    -- The run.
    run_id INTEGER NOT NULL PRIMARY KEY,
    -- The verdict as which it was counted; NULL while it is not.
    counted_as TEXT
);

-- Up to which run everything is counted, or in run_stat_open. One row.
CREATE TABLE run_stat_cursor (
    -- Always 1.
    id INTEGER NOT NULL PRIMARY KEY,
    -- The run.
    run_id BIGINT NOT NULL
);
