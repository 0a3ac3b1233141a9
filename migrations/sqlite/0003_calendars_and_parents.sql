-- Calendars, and jobs that follow from jobs, for SQLite.

-- The jobs that executors of one build declare: one row for each set that an app's executors have said.
CREATE TABLE declared_set (
    -- The app.
    app_id BIGINT NOT NULL,
    -- SHA-256 of specs, in hex.
    hash TEXT NOT NULL
        CHECK (length(hash) <= 64),
    -- The definitions, as a JSON array.
    specs TEXT NOT NULL,
    -- When an executor first declared it: how old its declarations are.
    first_seen_at_ms BIGINT NOT NULL,
    -- When a node last had an executor that declares it.
    last_seen_at_ms BIGINT NOT NULL,
    PRIMARY KEY (app_id, hash)
) WITHOUT ROWID;

CREATE INDEX declared_set_seen ON declared_set (last_seen_at_ms);

-- Business calendars by name; what is in them is in calendar_version.
CREATE TABLE calendar (
    -- Its id, made by a node.
    id INTEGER NOT NULL PRIMARY KEY,
    -- Its tenant.
    namespace_id BIGINT NOT NULL REFERENCES namespace (id),
    -- Unique in its namespace.
    name TEXT NOT NULL
        CHECK (length(name) <= 255),
    -- Its newest version, counted from 1.
    version BIGINT NOT NULL,
    -- When its first version was saved.
    created_at_ms BIGINT NOT NULL,
    -- When its newest version was saved.
    updated_at_ms BIGINT NOT NULL,
    CONSTRAINT calendar_key UNIQUE (namespace_id, name)
);

-- Every version that a calendar ever had.
CREATE TABLE calendar_version (
    -- The calendar.
    calendar_id BIGINT NOT NULL,
    -- Counted from 1.
    version BIGINT NOT NULL,
    -- What was saved, as JSON.
    spec TEXT NOT NULL,
    -- The same with the calendars that it names put in, as JSON: what jobs are planned by.
    expanded TEXT NOT NULL,
    -- Who saved it.
    author TEXT NOT NULL
        CHECK (length(author) <= 255),
    -- When it was saved.
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (calendar_id, version)
) WITHOUT ROWID;

-- Which jobs follow from which: the parents that the newest definition of a job names.
CREATE TABLE job_parent (
    -- The job that follows.
    child_id BIGINT NOT NULL,
    -- The job that it follows from.
    parent_id BIGINT NOT NULL,
    -- How the parent must have ended.
    on_what TEXT NOT NULL
        CHECK (on_what IN ('success', 'failure', 'either')),
    PRIMARY KEY (child_id, parent_id)
) WITHOUT ROWID;

CREATE INDEX job_parent_parent ON job_parent (parent_id);

-- Which node counts for a limit that jobs share: the one whose job named its key first, or who took its place.
CREATE TABLE limit_home (
    -- The tenant.
    namespace_id BIGINT NOT NULL,
    -- The key that the jobs name.
    limit_key TEXT NOT NULL
        CHECK (length(limit_key) <= 255),
    -- The node.
    home BIGINT NOT NULL,
    PRIMARY KEY (namespace_id, limit_key)
) WITHOUT ROWID;
