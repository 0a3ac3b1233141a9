-- Shadow mode, and the fires of another scheduler, for MySQL and MariaDB.
-- The reason of a run has no CHECK here.

-- A fire of the scheduler that was there before, as it was observed there.
CREATE TABLE IF NOT EXISTS shadow_fire (
    -- The tenant.
    namespace_id BIGINT NOT NULL,
    -- Which scheduler, by a name of the user's choice.
    source VARCHAR(64) NOT NULL,
    -- Its own number of the fire, which makes a repeated report harmless.
    source_id BIGINT NOT NULL,
    -- The job here.
    job_id BIGINT NOT NULL,
    -- The planned instant; NULL where that scheduler keeps none.
    due_at_ms BIGINT,
    -- When it was sent there.
    started_at_ms BIGINT NOT NULL,
    -- The address or the name of the executor there; empty where none had it.
    executor VARCHAR(255) NOT NULL,
    -- How it ended there, as far as was known.
    outcome VARCHAR(16) NOT NULL
        CHECK (outcome IN ('started', 'succeeded', 'failed')),
    PRIMARY KEY (namespace_id, source, source_id),
    KEY shadow_fire_job (job_id, started_at_ms),
    KEY shadow_fire_age (started_at_ms)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
