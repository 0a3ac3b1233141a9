-- Maintenance windows, and what they hold back, for SQLite.

-- A new reason of runs. SQLite cannot change a CHECK without writing the table anew; the rows of the ledger stay as they are, so only
-- the text of its definition changes, as https://sqlite.org/lang_altertable.html describes.
PRAGMA writable_schema = ON;

UPDATE sqlite_master SET sql = replace(sql, '''handler'', ''stopped'')', '''handler'', ''stopped'', ''maintenance'')')
    WHERE type = 'table' AND name = 'run';

PRAGMA writable_schema = RESET;

-- A time in which the jobs of a namespace or an app do not fire.
CREATE TABLE maintenance (
    -- Made by the server.
    id INTEGER NOT NULL PRIMARY KEY,
    -- The tenant.
    namespace_id BIGINT NOT NULL REFERENCES namespace (id),
    -- The app; NULL for all jobs of the namespace.
    app_id BIGINT,
    -- Its first instant.
    starts_at_ms BIGINT NOT NULL,
    -- The first instant after it.
    ends_at_ms BIGINT NOT NULL,
    -- What happens to the fires inside.
    fires TEXT NOT NULL
        CHECK (fires IN ('skip', 'hold')),
    -- Why.
    reason TEXT NOT NULL
        CHECK (length(reason) <= 1000),
    -- Who planned it.
    author TEXT NOT NULL
        CHECK (length(author) <= 255),
    -- When.
    created_at_ms BIGINT NOT NULL
);

CREATE INDEX maintenance_end ON maintenance (ends_at_ms);

CREATE INDEX maintenance_list ON maintenance (namespace_id, ends_at_ms);

-- The first fire that a maintenance window holds back: what is planned from here up to next_fire_at_ms has no row yet. NULL where
-- nothing is held back.
ALTER TABLE job_due ADD COLUMN held_from_ms BIGINT;
