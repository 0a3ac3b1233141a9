-- Keys that all servers of the database share, for MySQL and MariaDB.

-- The first server that needs one makes it.
CREATE TABLE IF NOT EXISTS server_key (
    -- What it is for.
    name VARCHAR(40) NOT NULL,
    -- The key, as text.
    secret VARCHAR(100) NOT NULL,
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
