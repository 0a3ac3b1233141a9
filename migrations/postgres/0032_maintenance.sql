-- Maintenance windows, and what they hold back, for PostgreSQL.

-- A new reason of runs. NOT VALID: the rows that exist are not read for it.
ALTER TABLE run DROP CONSTRAINT run_reason_check;

ALTER TABLE run ADD CONSTRAINT run_reason_check CHECK (reason IN (
    'misfire', 'overlap', 'calendar', 'paused', 'changed', 'deleted', 'no_executor', 'expired', 'retry',
    'executor_lost', 'not_received', 'refused', 'requested', 'parent', 'covered', 'handler', 'stopped', 'maintenance')) NOT VALID;

-- A time in which the jobs of a namespace or an app do not fire.
CREATE TABLE maintenance (
    -- Made by the server.
    id BIGINT NOT NULL,
    -- The tenant.
    namespace_id BIGINT NOT NULL REFERENCES namespace (id),
    -- The app; NULL for all jobs of the namespace.
    app_id BIGINT,
    -- Its first instant.
    starts_at_ms BIGINT NOT NULL,
    -- The first instant after it.
    ends_at_ms BIGINT NOT NULL,
    -- What happens to the fires inside.
    fires VARCHAR(8) COLLATE "C" NOT NULL
        CHECK (fires IN ('skip', 'hold')),
    -- Why.
    reason VARCHAR(1000) NOT NULL,
    -- Who planned it.
    author VARCHAR(255) COLLATE "C" NOT NULL,
    -- When.
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (id)
);

CREATE INDEX maintenance_end ON maintenance (ends_at_ms);

CREATE INDEX maintenance_list ON maintenance (namespace_id, ends_at_ms);

-- The first fire that a maintenance window holds back: what is planned from here up to next_fire_at_ms has no row yet. NULL where
-- nothing is held back.
ALTER TABLE job_due ADD COLUMN held_from_ms BIGINT;
