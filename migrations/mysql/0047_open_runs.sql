-- The open runs in a narrow table of their own, for MySQL and MariaDB, which have no partial indexes: their indexes are as small as the
-- number of open runs.

-- Statements of servers before 0.2.0 that claim, end or take over runs name this column: they fail from here on, because such a server would
-- write run alone.
SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'run' AND column_name = 'lost_count');

SET @rename_column = IF(@has_column = 0, 'DO 0', 'ALTER TABLE run RENAME COLUMN lost_count TO lost_attempt_count');

PREPARE rename_column FROM @rename_column;

EXECUTE rename_column;

DEALLOCATE PREPARE rename_column;

-- A part of an earlier try would be out of date.
DROP TABLE IF EXISTS open_run;

-- One row for each run whose status is open. run has that run too, with the same values: the transaction that holds the lock of the row in
-- run is the only one that writes the row here.
CREATE TABLE open_run (
    -- The run.
    id BIGINT NOT NULL,
    -- Its job: a part of its key.
    job_id BIGINT NOT NULL,
    -- Its planned instant: a part of its key.
    fire_at_ms BIGINT NOT NULL,
    -- Its cause: a part of its key.
    cause BIGINT NOT NULL,
    -- Its shard: a part of its key.
    shard_index INTEGER NOT NULL,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- Where its executors are.
    app_id BIGINT NOT NULL,
    -- The node that owns it.
    node_id BIGINT NOT NULL,
    -- The epoch under which that node does.
    node_epoch BIGINT NOT NULL,
    -- Its status.
    status VARCHAR(16) NOT NULL
        CHECK (status IN ('pending', 'waiting', 'running')),
    -- When it may start.
    due_at_ms BIGINT NOT NULL,
    PRIMARY KEY (id),
    -- The key is unique in run. Here it is not, so that no row can keep out the row of another run.
    KEY open_run_job (job_id, status, fire_at_ms, cause, shard_index),
    -- The status comes before the epoch, so that the open runs of all earlier epochs are found by their status.
    KEY open_run_owner (node_id, status, node_epoch, due_at_ms),
    KEY open_run_lease (node_id, job_id, node_epoch),
    KEY open_run_list (namespace_id, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The default would lock each row of run that is read, and the running servers would wait.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;

-- One statement for each status, because the index run_open begins with the node and the status.
INSERT INTO open_run (
        id, job_id, fire_at_ms, cause, shard_index, namespace_id, app_id, node_id, node_epoch, status, due_at_ms)
    SELECT run.id, run.job_id, run.fire_at_ms, run.cause, run.shard_index, run.namespace_id, run.app_id,
        run.node_id, run.node_epoch, run.status, run.due_at_ms
    FROM (SELECT DISTINCT node_id FROM run) AS owners STRAIGHT_JOIN run ON run.node_id = owners.node_id AND run.status = 'pending';

INSERT INTO open_run (
        id, job_id, fire_at_ms, cause, shard_index, namespace_id, app_id, node_id, node_epoch, status, due_at_ms)
    SELECT run.id, run.job_id, run.fire_at_ms, run.cause, run.shard_index, run.namespace_id, run.app_id,
        run.node_id, run.node_epoch, run.status, run.due_at_ms
    FROM (SELECT DISTINCT node_id FROM run) AS owners STRAIGHT_JOIN run ON run.node_id = owners.node_id AND run.status = 'waiting';

INSERT INTO open_run (
        id, job_id, fire_at_ms, cause, shard_index, namespace_id, app_id, node_id, node_epoch, status, due_at_ms)
    SELECT run.id, run.job_id, run.fire_at_ms, run.cause, run.shard_index, run.namespace_id, run.app_id,
        run.node_id, run.node_epoch, run.status, run.due_at_ms
    FROM (SELECT DISTINCT node_id FROM run) AS owners STRAIGHT_JOIN run ON run.node_id = owners.node_id AND run.status = 'running';

UPDATE schema_compat SET min_server = '0.2.0' WHERE id = 1;
