-- The runs with a verdict other than success in a narrow table of their own, for SQLite: a change of the verdict then changes no index of
-- run, and lists of these runs read few pages.

-- One row for each run whose verdict is not success. run has that run too, with the same values: the transaction that holds the lock of
-- the row in run is the only one that writes the row here.
CREATE TABLE unsuccessful_run (
    -- The run.
    id INTEGER NOT NULL PRIMARY KEY,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- Its job.
    job_id BIGINT NOT NULL,
    -- Where its executors are.
    app_id BIGINT NOT NULL,
    -- Its verdict.
    status TEXT NOT NULL
        CHECK (status IN ('failed', 'timed_out', 'cancelled', 'unknown', 'skipped')),
    -- Why it has that verdict, where the status alone does not show it.
    reason TEXT
);

INSERT INTO unsuccessful_run (id, namespace_id, job_id, app_id, status, reason)
    SELECT id, namespace_id, job_id, app_id, status, reason
    FROM run WHERE status IN ('failed', 'timed_out', 'cancelled', 'unknown', 'skipped');

CREATE INDEX unsuccessful_run_list ON unsuccessful_run (namespace_id, id);
