-- Expectations of jobs, and failures that were not looked at, for SQLite.

-- When the expectation of a job is looked at next. A success moves that on, so that nothing is due while all is well.
CREATE TABLE job_expect (
    -- The job.
    job_id BIGINT NOT NULL,
    -- What is expected.
    kind TEXT NOT NULL
        CHECK (kind IN ('success_by', 'no_success_for', 'longer_than', 'late')),
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- When it is looked at next; NULL where open runs are compared with it.
    look_at_ms BIGINT,
    PRIMARY KEY (job_id, kind)
);

CREATE INDEX job_expect_look ON job_expect (namespace_id, look_at_ms);

CREATE INDEX job_expect_kind ON job_expect (namespace_id, kind);

-- A run that failed for good and was not looked at.
CREATE TABLE dead_letter (
    -- The run.
    run_id INTEGER NOT NULL PRIMARY KEY,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- Its app.
    app_id BIGINT NOT NULL,
    -- Its job.
    job_id BIGINT NOT NULL,
    -- Its planned instant: a later success of the job removes the row.
    fire_at_ms BIGINT NOT NULL
);

CREATE INDEX dead_letter_list ON dead_letter (namespace_id, run_id);

CREATE INDEX dead_letter_job ON dead_letter (job_id, run_id);

-- When open runs are next compared with the expectations of their jobs; NULL where no job expects anything of them.
ALTER TABLE alert_space ADD COLUMN open_look_at_ms BIGINT;
