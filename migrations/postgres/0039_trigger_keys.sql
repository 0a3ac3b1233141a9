-- Keys of triggers, for PostgreSQL.

-- The key that the caller of the trigger gave the run; NULL for most.
ALTER TABLE run ADD COLUMN trigger_key VARCHAR(200) COLLATE "C";

-- Which run of a job has a key, or had it last: a key is free when that run has its verdict.
CREATE TABLE trigger_key (
    -- The job: keys of other jobs are others.
    job_id BIGINT NOT NULL,
    -- The key.
    name VARCHAR(200) COLLATE "C" NOT NULL,
    -- The run.
    run_id BIGINT NOT NULL,
    PRIMARY KEY (job_id, name)
);

CREATE INDEX trigger_key_run ON trigger_key (run_id);
