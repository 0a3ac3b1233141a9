-- Keys that all servers of the database share, for PostgreSQL.

-- The first server that needs one makes it.
CREATE TABLE server_key (
    -- What it is for.
    name VARCHAR(40) COLLATE "C" NOT NULL,
    -- The key, as text.
    secret VARCHAR(100) COLLATE "C" NOT NULL,
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (name)
);
