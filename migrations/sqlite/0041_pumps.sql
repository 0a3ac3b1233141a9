-- Pump jobs and their items, for SQLite.

-- New reasons of runs. SQLite cannot change a CHECK without writing the table anew; the rows of the ledger stay as they are, so only
-- the text of its definition changes, as https://sqlite.org/lang_altertable.html describes.
PRAGMA writable_schema = ON;

UPDATE sqlite_master SET sql = replace(sql, '''maintenance'', ''shadow'')', '''maintenance'', ''shadow'', ''window_over'', ''dry'', ''moved'')')
    WHERE type = 'table' AND name = 'run';

UPDATE sqlite_master SET sql = replace(sql, '''handler'', ''stopped'')', '''handler'', ''stopped'', ''moved'')')
    WHERE type = 'table' AND name = 'run_attempt';

PRAGMA writable_schema = RESET;

-- The jobs that are pump jobs, or were.
CREATE TABLE pump_job (
    -- The job.
    job_id BIGINT NOT NULL,
    PRIMARY KEY (job_id)
) WITHOUT ROWID;

-- The items of pump jobs. Only the job's home writes them.
CREATE TABLE pump_item (
    -- The job.
    job_id BIGINT NOT NULL,
    -- Its name, unique in the job.
    name TEXT NOT NULL,
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
) WITHOUT ROWID;
