-- The runs with a verdict other than success in a narrow table of their own, for MySQL and MariaDB: a change of the verdict then changes no index of
-- run, and lists of these runs read few pages.

-- A part of an earlier try would be out of date.
DROP TABLE IF EXISTS unsuccessful_run;

-- One row for each run whose verdict is not success. run has that run too, with the same values: the transaction that holds the lock of
-- the row in run is the only one that writes the row here.
CREATE TABLE unsuccessful_run (
    -- The run.
    id BIGINT NOT NULL,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- Its job.
    job_id BIGINT NOT NULL,
    -- Where its executors are.
    app_id BIGINT NOT NULL,
    -- Its verdict.
    status VARCHAR(16) NOT NULL
        CHECK (status IN ('failed', 'timed_out', 'cancelled', 'unknown', 'skipped')),
    -- Why it has that verdict, where the status alone does not show it.
    reason VARCHAR(16),
    PRIMARY KEY (id),
    KEY unsuccessful_run_list (namespace_id, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The default would lock each row of run that is read, and the running servers would wait.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;

-- One statement for each verdict, because the index run_trouble begins with the tenant and the status.
INSERT INTO unsuccessful_run (id, namespace_id, job_id, app_id, status, reason)
    SELECT run.id, run.namespace_id, run.job_id, run.app_id, run.status, run.reason
    FROM (SELECT DISTINCT namespace_id FROM run) AS tenants
    STRAIGHT_JOIN run ON run.namespace_id = tenants.namespace_id AND run.status = 'failed';

INSERT INTO unsuccessful_run (id, namespace_id, job_id, app_id, status, reason)
    SELECT run.id, run.namespace_id, run.job_id, run.app_id, run.status, run.reason
    FROM (SELECT DISTINCT namespace_id FROM run) AS tenants
    STRAIGHT_JOIN run ON run.namespace_id = tenants.namespace_id AND run.status = 'timed_out';

INSERT INTO unsuccessful_run (id, namespace_id, job_id, app_id, status, reason)
    SELECT run.id, run.namespace_id, run.job_id, run.app_id, run.status, run.reason
    FROM (SELECT DISTINCT namespace_id FROM run) AS tenants
    STRAIGHT_JOIN run ON run.namespace_id = tenants.namespace_id AND run.status = 'cancelled';

INSERT INTO unsuccessful_run (id, namespace_id, job_id, app_id, status, reason)
    SELECT run.id, run.namespace_id, run.job_id, run.app_id, run.status, run.reason
    FROM (SELECT DISTINCT namespace_id FROM run) AS tenants
    STRAIGHT_JOIN run ON run.namespace_id = tenants.namespace_id AND run.status = 'unknown';

INSERT INTO unsuccessful_run (id, namespace_id, job_id, app_id, status, reason)
    SELECT run.id, run.namespace_id, run.job_id, run.app_id, run.status, run.reason
    FROM (SELECT DISTINCT namespace_id FROM run) AS tenants
    STRAIGHT_JOIN run ON run.namespace_id = tenants.namespace_id AND run.status = 'skipped';
