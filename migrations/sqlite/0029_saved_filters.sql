-- Saved filters of users, and how late servers release fires, for SQLite.

-- A filter that a user kept under a name.
CREATE TABLE saved_filter (
    -- The account; for a sign-in by a token without one, the first token of its line.
    owner_id BIGINT NOT NULL,
    -- Its place among those of the owner: there are no more of them than places.
    slot SMALLINT NOT NULL
        CHECK (slot BETWEEN 0 AND 49),
    -- The list that it is for.
    page TEXT NOT NULL
        CHECK (page IN ('jobs', 'runs')),
    -- Its name, unique for the list of the owner.
    name TEXT NOT NULL
        CHECK (length(name) <= 60),
    -- The filter, as it is written in the list.
    filter TEXT NOT NULL
        CHECK (length(filter) <= 1000),
    -- When it was saved.
    saved_at_ms BIGINT NOT NULL,
    PRIMARY KEY (owner_id, slot),
    CONSTRAINT saved_filter_key UNIQUE (owner_id, page, name)
) WITHOUT ROWID;

-- 99 of 100 fires of the last minutes were released so many milliseconds after their instants, or sooner; NULL where there was none.
ALTER TABLE node ADD COLUMN lateness_p99_ms BIGINT;
