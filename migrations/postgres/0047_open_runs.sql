-- The open runs in a narrow table of their own, for PostgreSQL: their indexes are as small as the number of open runs, and vacuum
-- does not read the indexes of all runs because of them.

-- Statements of servers before 0.2.0 that claim, end or take over runs name this column: they fail from here on, because such a server would
-- write run alone.
ALTER TABLE run RENAME COLUMN lost_count TO lost_attempt_count;

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
    status VARCHAR(16) COLLATE "C" NOT NULL
        CHECK (status IN ('pending', 'waiting', 'running')),
    -- When it may start.
    due_at_ms BIGINT NOT NULL,
    PRIMARY KEY (id)
)
-- Each row is written a few times and then deleted, so each page has room for new versions, and vacuum comes often.
WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

INSERT INTO open_run (
        id, job_id, fire_at_ms, cause, shard_index, namespace_id, app_id, node_id, node_epoch, status, due_at_ms)
    SELECT id, job_id, fire_at_ms, cause, shard_index, namespace_id, app_id, node_id, node_epoch, status, due_at_ms
    FROM run WHERE status IN ('pending', 'waiting', 'running');

-- The key is unique in run. Here it is not, so that no row can keep out the row of another run.
CREATE INDEX open_run_job ON open_run (job_id, status, fire_at_ms, cause, shard_index);

-- The status comes before the epoch, so that the open runs of all earlier epochs are found by their status.
CREATE INDEX open_run_owner ON open_run (node_id, status, node_epoch, due_at_ms, id);

CREATE INDEX open_run_lease ON open_run (node_id, job_id, node_epoch);

CREATE INDEX open_run_list ON open_run (namespace_id, id);

UPDATE schema_compat SET min_server = '0.2.0' WHERE id = 1;
