-- Executors that speak XXL-JOB's protocol, and the numbers by which they know jobs and runs, for MySQL and MariaDB.

-- The next free number of each kind. They begin high, so that they differ from those of an XXL-JOB server that the same executors
-- had before, and fit into 32 bits.
CREATE TABLE IF NOT EXISTS xxl_counter (
    -- What is numbered.
    name VARCHAR(16) NOT NULL PRIMARY KEY
        CHECK (name IN ('job', 'log')),
    -- The number that comes next.
    next_value BIGINT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

INSERT IGNORE INTO xxl_counter (name, next_value) VALUES ('job', 1000000000), ('log', 1000000000);

-- The number by which executors know a job: their protocol has 32 bits for it.
CREATE TABLE IF NOT EXISTS xxl_job (
    -- The job.
    job_id BIGINT NOT NULL PRIMARY KEY,
    -- Its number.
    number BIGINT NOT NULL,
    CONSTRAINT xxl_job_number UNIQUE (number)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- An executor that registered, or was registered by its address.
CREATE TABLE IF NOT EXISTS xxl_executor (
    -- Its incarnation: the same as long as its address is.
    id BIGINT NOT NULL PRIMARY KEY,
    -- The namespace of its app.
    namespace_id BIGINT NOT NULL,
    -- Its app.
    app_id BIGINT NOT NULL,
    -- Where servers reach it, without a slash at the end.
    address VARCHAR(255) NOT NULL,
    -- The token that it registered with and wants to be called with, encrypted where the server has a key.
    token VARCHAR(500) NOT NULL,
    -- When it first registered.
    first_seen_at_ms BIGINT NOT NULL,
    -- When it last registered.
    last_seen_at_ms BIGINT NOT NULL,
    -- When it signed off; NULL while it is registered.
    left_at_ms BIGINT,
    CONSTRAINT xxl_executor_address UNIQUE (app_id, address),
    INDEX xxl_executor_seen (last_seen_at_ms)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- An attempt that was sent to such an executor, or may have been.
CREATE TABLE IF NOT EXISTS xxl_run (
    -- The number by which the executor knows it; no number is used twice.
    log_id BIGINT NOT NULL PRIMARY KEY,
    -- The run.
    run_id BIGINT NOT NULL,
    -- Its attempt.
    attempt BIGINT NOT NULL,
    -- Its job.
    job_id BIGINT NOT NULL,
    -- The number of the job.
    number BIGINT NOT NULL,
    -- The executor.
    executor_id BIGINT NOT NULL,
    -- Its app.
    app_id BIGINT NOT NULL,
    -- When the row was written: the request follows.
    sent_at_ms BIGINT NOT NULL,
    -- 0: no end is known; 1: an end is known, and no verdict was stored; 2: done.
    state SMALLINT NOT NULL
        CHECK (state BETWEEN 0 AND 2),
    -- The code of the end, as the executor sent it; -1 where the server ended it.
    code BIGINT,
    -- The message of the end.
    message TEXT,
    -- When the end was known.
    reported_at_ms BIGINT,
    -- The number of the next line of its log that is not stored, from 1.
    log_line BIGINT NOT NULL,
    INDEX xxl_run_executor (executor_id, state, log_id),
    INDEX xxl_run_over (state, reported_at_ms)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
