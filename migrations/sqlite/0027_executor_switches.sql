-- The switches of executors, and which runs each of them has in hand, for SQLite.

-- An executor whose switch is not at active; the row goes when it is. The switch belongs to the name: it holds after every restart.
CREATE TABLE executor_switch (
    -- Its app, which belongs to one namespace.
    app_id BIGINT NOT NULL,
    -- Its stable name.
    name TEXT NOT NULL
        CHECK (length(name) <= 255),
    -- Where the switch is.
    state TEXT NOT NULL
        CHECK (state IN ('draining', 'stopped')),
    -- When it was thrown.
    set_at_ms BIGINT NOT NULL,
    PRIMARY KEY (app_id, name)
) WITHOUT ROWID;

-- The runs that executors have in hand, counted by executor without reading the runs.
CREATE INDEX run_held ON run (namespace_id, app_id, executor)
    WHERE status = 'running';
