-- Pump jobs and their items, for MySQL and MariaDB.
-- The reason of a run has no CHECK here.

-- A new reason of attempts. A longer CHECK would read every row, so the column has none from now on: the program refuses
-- other words. In MariaDB the CHECK goes with this statement, in MySQL by its name.
ALTER TABLE run_attempt MODIFY COLUMN reason VARCHAR(16);

SET @check_name = (SELECT MAX(checks.constraint_name) FROM information_schema.check_constraints AS checks
    JOIN information_schema.table_constraints AS owners ON owners.constraint_schema = checks.constraint_schema
    AND owners.constraint_name = checks.constraint_name
    WHERE owners.table_schema = DATABASE() AND owners.table_name = 'run_attempt' AND checks.check_clause LIKE '%not_received%');

SET @drop_check = IF(@check_name IS NULL, 'DO 0', CONCAT('ALTER TABLE run_attempt DROP CONSTRAINT ', @check_name));

PREPARE drop_check FROM @drop_check;

EXECUTE drop_check;

DEALLOCATE PREPARE drop_check;

-- The jobs that are pump jobs, or were.
CREATE TABLE IF NOT EXISTS pump_job (
    -- The job.
    job_id BIGINT NOT NULL,
    PRIMARY KEY (job_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The items of pump jobs. Only the job's home writes them.
CREATE TABLE IF NOT EXISTS pump_item (
    -- The job.
    job_id BIGINT NOT NULL,
    -- Its name, unique in the job.
    name VARCHAR(255) NOT NULL,
    -- The run of the group that has it; NULL where it is free.
    owner_run_id BIGINT,
    -- Which attempt of that run.
    owner_attempt INT,
    -- Rises with each owner.
    epoch BIGINT NOT NULL,
    -- When its owner was asked to give it back.
    asked_at_ms BIGINT,
    -- The number of the last progress at this epoch.
    sequence BIGINT NOT NULL,
    -- Where its last owner stopped, in its own words.
    checkpoint TEXT,
    -- What was done at earlier epochs: selects, rows that they returned, rows done, executions that failed.
    fetches_before BIGINT NOT NULL,
    rows_before BIGINT NOT NULL,
    done_before BIGINT NOT NULL,
    failed_before BIGINT NOT NULL,
    -- The same at this epoch.
    fetches BIGINT NOT NULL,
    rows_fetched BIGINT NOT NULL,
    done BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    -- Rows that were done in the minute before the last progress.
    per_minute BIGINT NOT NULL,
    -- When the oldest row in work was fetched.
    oldest_at_ms BIGINT,
    -- 1 where the last select at this epoch returned no rows and none is in work.
    is_dry SMALLINT NOT NULL
        CHECK (is_dry IN (0, 1)),
    -- When the row was last written.
    updated_at_ms BIGINT NOT NULL,
    PRIMARY KEY (job_id, name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
