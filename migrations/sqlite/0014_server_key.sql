-- Keys that all servers of the database share, for SQLite.

-- The first server that needs one makes it.
CREATE TABLE server_key (
    -- What it is for.
    name TEXT NOT NULL
        CHECK (length(name) <= 40),
    -- The key, as text.
    secret TEXT NOT NULL
        CHECK (length(secret) <= 100),
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (name)
);
