-- The switches of executors, for MySQL and MariaDB.

-- An executor whose switch is not at active; the row goes when it is. The switch belongs to the name: it holds after every restart.
CREATE TABLE IF NOT EXISTS executor_switch (
    -- Its app, which belongs to one namespace.
    app_id BIGINT NOT NULL,
    -- Its stable name.
    name VARCHAR(255) NOT NULL,
    -- Where the switch is.
    state VARCHAR(16) NOT NULL
        CHECK (state IN ('draining', 'stopped')),
    -- When it was thrown.
    set_at_ms BIGINT NOT NULL,
    PRIMARY KEY (app_id, name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
