-- Shadow mode, and the fires of another scheduler, for SQLite.

-- A new reason of runs. SQLite cannot change a CHECK without writing the table anew; the rows of the ledger stay as they are, so only
-- the text of its definition changes, as https://sqlite.org/lang_altertable.html describes.
PRAGMA writable_schema = ON;

UPDATE sqlite_master SET sql = replace(sql, '''stopped'', ''maintenance'')', '''stopped'', ''maintenance'', ''shadow'')')
    WHERE type = 'table' AND name = 'run';

PRAGMA writable_schema = RESET;

-- A fire of the scheduler that was there before, as it was observed there.
CREATE TABLE shadow_fire (
    -- The tenant.
    namespace_id BIGINT NOT NULL,
    -- Which scheduler, by a name of the user's choice.
    source TEXT NOT NULL
        CHECK (length(source) <= 64),
    -- Its own number of the fire, which makes a repeated report harmless.
    source_id BIGINT NOT NULL,
    -- The job here.
    job_id BIGINT NOT NULL,
    -- The planned instant; NULL where that scheduler keeps none.
    due_at_ms BIGINT,
    -- When it was sent there.
    started_at_ms BIGINT NOT NULL,
    -- The address or the name of the executor there; empty where none had it.
    executor TEXT NOT NULL
        CHECK (length(executor) <= 255),
    -- How it ended there, as far as was known.
    outcome TEXT NOT NULL
        CHECK (outcome IN ('started', 'succeeded', 'failed')),
    PRIMARY KEY (namespace_id, source, source_id)
) WITHOUT ROWID;

CREATE INDEX shadow_fire_job ON shadow_fire (job_id, started_at_ms);

CREATE INDEX shadow_fire_age ON shadow_fire (started_at_ms);
