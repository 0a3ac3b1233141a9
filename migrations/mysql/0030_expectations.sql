-- Expectations of jobs, and failures that were not looked at, for MySQL and MariaDB.
-- MySQL has no IF NOT EXISTS for a column, and this must be able to run again.

-- When the expectation of a job is looked at next. A success moves that on, so that nothing is due while all is well.
CREATE TABLE IF NOT EXISTS job_expect (
    -- The job.
    job_id BIGINT NOT NULL,
    -- What is expected.
    kind VARCHAR(16) NOT NULL
        CHECK (kind IN ('success_by', 'no_success_for', 'longer_than', 'late')),
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- When it is looked at next; NULL where open runs are compared with it.
    look_at_ms BIGINT,
    PRIMARY KEY (job_id, kind),
    KEY job_expect_look (namespace_id, look_at_ms),
    KEY job_expect_kind (namespace_id, kind)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- A run that failed for good and was not looked at.
CREATE TABLE IF NOT EXISTS dead_letter (
    -- The run.
    run_id BIGINT NOT NULL PRIMARY KEY,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- Its app.
    app_id BIGINT NOT NULL,
    -- Its job.
    job_id BIGINT NOT NULL,
    -- Its planned instant: a later success of the job removes the row.
    fire_at_ms BIGINT NOT NULL,
    KEY dead_letter_list (namespace_id, run_id),
    KEY dead_letter_job (job_id, run_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'alert_space' AND column_name = 'open_look_at_ms');

-- When open runs are next compared with the expectations of their jobs; NULL where no job expects anything of them.
SET @add_column = IF(@has_column = 0, 'ALTER TABLE alert_space ADD COLUMN open_look_at_ms BIGINT', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;
