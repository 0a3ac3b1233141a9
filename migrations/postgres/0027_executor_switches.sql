-- The switches of executors, and which runs each of them has in hand, for PostgreSQL.

-- An executor whose switch is not at active; the row goes when it is. The switch belongs to the name: it holds after every restart.
CREATE TABLE executor_switch (
    -- Its app, which belongs to one namespace.
    app_id BIGINT NOT NULL,
    -- Its stable name.
    name VARCHAR(255) COLLATE "C" NOT NULL,
    -- Where the switch is.
    state VARCHAR(16) COLLATE "C" NOT NULL
        CHECK (state IN ('draining', 'stopped')),
    -- When it was thrown.
    set_at_ms BIGINT NOT NULL,
    PRIMARY KEY (app_id, name)
);

-- The runs that executors have in hand, counted by executor without reading the runs.
CREATE INDEX IF NOT EXISTS run_held ON run (namespace_id, app_id, executor)
    WHERE status = 'running';
