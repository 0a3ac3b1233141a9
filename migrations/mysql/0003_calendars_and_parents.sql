-- Calendars, and jobs that follow from jobs, for MySQL and MariaDB.

-- The jobs that executors of one build declare: one row for each set that an app's executors have said.
CREATE TABLE IF NOT EXISTS declared_set (
    -- The app.
    app_id BIGINT NOT NULL,
    -- SHA-256 of specs, in hex.
    hash VARCHAR(64) NOT NULL,
    -- The definitions, as a JSON array.
    specs MEDIUMTEXT NOT NULL,
    -- When an executor first declared it: how old its declarations are.
    first_seen_at_ms BIGINT NOT NULL,
    -- When a node last had an executor that declares it.
    last_seen_at_ms BIGINT NOT NULL,
    PRIMARY KEY (app_id, hash),
    KEY declared_set_seen (last_seen_at_ms)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Business calendars by name; what is in them is in calendar_version.
CREATE TABLE IF NOT EXISTS calendar (
    -- Its id, made by a node.
    id BIGINT NOT NULL,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- Unique in its namespace.
    name VARCHAR(255) NOT NULL,
    -- Its newest version, counted from 1.
    version BIGINT NOT NULL,
    -- When its first version was saved.
    created_at_ms BIGINT NOT NULL,
    -- When its newest version was saved.
    updated_at_ms BIGINT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT calendar_key UNIQUE (namespace_id, name),
    FOREIGN KEY (namespace_id) REFERENCES namespace (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Every version that a calendar ever had.
CREATE TABLE IF NOT EXISTS calendar_version (
    -- The calendar.
    calendar_id BIGINT NOT NULL,
    -- Counted from 1.
    version BIGINT NOT NULL,
    -- What was saved, as JSON.
    spec MEDIUMTEXT NOT NULL,
    -- The same with the calendars that it names put in, as JSON: what jobs are planned by.
    expanded MEDIUMTEXT NOT NULL,
    -- Who saved it.
    author VARCHAR(255) NOT NULL,
    -- When it was saved.
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (calendar_id, version)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Which jobs follow from which: the parents that the newest definition of a job names.
CREATE TABLE IF NOT EXISTS job_parent (
    -- The job that follows.
    child_id BIGINT NOT NULL,
    -- The job that it follows from.
    parent_id BIGINT NOT NULL,
    -- How the parent must have ended.
    on_what VARCHAR(16) NOT NULL
        CHECK (on_what IN ('success', 'failure', 'either')),
    PRIMARY KEY (child_id, parent_id),
    KEY job_parent_parent (parent_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Which node counts for a limit that jobs share: the one whose job named its key first, or who took its place.
CREATE TABLE IF NOT EXISTS limit_home (
    -- The tenant.
    namespace_id BIGINT NOT NULL,
    -- The key that the jobs name.
    limit_key VARCHAR(255) NOT NULL,
    -- The node.
    home BIGINT NOT NULL,
    PRIMARY KEY (namespace_id, limit_key)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
