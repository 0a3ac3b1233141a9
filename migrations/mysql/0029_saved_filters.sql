-- Saved filters of users, and how late servers release fires, for MySQL and MariaDB.

-- A filter that a user kept under a name.
CREATE TABLE IF NOT EXISTS saved_filter (
    -- The account; for a sign-in by a token without one, the first token of its line.
    owner_id BIGINT NOT NULL,
    -- Its place among those of the owner: there are no more of them than places.
    slot SMALLINT NOT NULL
        CHECK (slot BETWEEN 0 AND 49),
    -- The list that it is for.
    page VARCHAR(16) NOT NULL
        CHECK (page IN ('jobs', 'runs')),
    -- Its name, unique for the list of the owner.
    name VARCHAR(60) NOT NULL,
    -- The filter, as it is written in the list.
    filter VARCHAR(1000) NOT NULL,
    -- When it was saved.
    saved_at_ms BIGINT NOT NULL,
    PRIMARY KEY (owner_id, slot),
    CONSTRAINT saved_filter_key UNIQUE (owner_id, page, name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- MySQL has no IF NOT EXISTS for a column, and this must be able to run again.
SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'node' AND column_name = 'lateness_p99_ms');

-- lateness_p99_ms: 99 of 100 fires of the last minutes were released so many milliseconds after their instants, or sooner; NULL where there was none.
SET @add_column = IF(@has_column = 0, 'ALTER TABLE node ADD COLUMN lateness_p99_ms BIGINT', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;
