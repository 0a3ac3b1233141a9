-- Shadow mode, and the fires of another scheduler, for PostgreSQL.

-- A new reason of runs. NOT VALID: the rows that exist are not read for it.
ALTER TABLE run DROP CONSTRAINT run_reason_check;

ALTER TABLE run ADD CONSTRAINT run_reason_check CHECK (reason IN (
    'misfire', 'overlap', 'calendar', 'paused', 'changed', 'deleted', 'no_executor', 'expired', 'retry', 'executor_lost',
    'not_received', 'refused', 'requested', 'parent', 'covered', 'handler', 'stopped', 'maintenance', 'shadow')) NOT VALID;

-- A fire of the scheduler that was there before, as it was observed there.
CREATE TABLE shadow_fire (
    -- The tenant.
    namespace_id BIGINT NOT NULL,
    -- Which scheduler, by a name of the user's choice.
    source VARCHAR(64) COLLATE "C" NOT NULL,
    -- Its own number of the fire, which makes a repeated report harmless.
    source_id BIGINT NOT NULL,
    -- The job here.
    job_id BIGINT NOT NULL,
    -- The planned instant; NULL where that scheduler keeps none.
    due_at_ms BIGINT,
    -- When it was sent there.
    started_at_ms BIGINT NOT NULL,
    -- The address or the name of the executor there; empty where none had it.
    executor VARCHAR(255) COLLATE "C" NOT NULL,
    -- How it ended there, as far as was known.
    outcome VARCHAR(16) COLLATE "C" NOT NULL
        CHECK (outcome IN ('started', 'succeeded', 'failed')),
    PRIMARY KEY (namespace_id, source, source_id)
);

CREATE INDEX shadow_fire_job ON shadow_fire (job_id, started_at_ms);

CREATE INDEX shadow_fire_age ON shadow_fire (started_at_ms);
