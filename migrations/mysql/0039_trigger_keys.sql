-- Keys of triggers, for MySQL and MariaDB.

-- The key that the caller of the trigger gave the run; NULL for most.
SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'run' AND column_name = 'trigger_key');

SET @add_column = IF(@has_column = 0, 'ALTER TABLE run ADD COLUMN trigger_key VARCHAR(200)', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;

-- Which run of a job has a key, or had it last: a key is free when that run has its verdict.
CREATE TABLE IF NOT EXISTS trigger_key (
    -- The job: keys of other jobs are others.
    job_id BIGINT NOT NULL,
    -- The key.
    name VARCHAR(200) NOT NULL,
    -- The run.
    run_id BIGINT NOT NULL,
    PRIMARY KEY (job_id, name),
    KEY trigger_key_run (run_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
