-- Counts of runs per job and hour, for MySQL 8 and MariaDB: what is left of the ledger when runs are gone, and what charts read.

-- How many runs of a job ended how, of those planned for an hour.
CREATE TABLE IF NOT EXISTS run_stat (
    -- The job.
    job_id BIGINT NOT NULL,
    -- The hour in which the runs were planned: when it begins.
    hour_at_ms BIGINT NOT NULL,
    -- Their verdict.
    status VARCHAR(16) NOT NULL
        CHECK (status IN ('succeeded', 'failed', 'timed_out', 'cancelled', 'unknown', 'skipped')),
    -- How many; a row of the ledger that stands for a span of fires counts as all of them. Shards don't count, their whole does.
    run_count BIGINT NOT NULL,
    -- How long all of their last attempts took together, from the start of the handler to its end.
    duration_ms BIGINT NOT NULL,
    PRIMARY KEY (job_id, hour_at_ms, status),
    KEY run_stat_hour (hour_at_ms)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Runs behind the cursor whose verdict was not known when it passed, or may still become another one.
CREATE TABLE IF NOT EXISTS run_stat_open (
    -- The run.
    run_id BIGINT NOT NULL PRIMARY KEY,
    -- The verdict as which it was counted; NULL while it is not.
    counted_as VARCHAR(16)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Up to which run everything is counted, or in run_stat_open. One row.
CREATE TABLE IF NOT EXISTS run_stat_cursor (
    -- Always 1.
    id BIGINT NOT NULL PRIMARY KEY,
    -- The run.
    run_id BIGINT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
