-- Calendars, and jobs that follow from jobs, for PostgreSQL.

-- Business calendars by name; what is in them is in calendar_version.
CREATE TABLE calendar (
    -- Its id, made by a node.
    id BIGINT NOT NULL,
    -- Its tenant.
    namespace_id BIGINT NOT NULL REFERENCES namespace (id),
    -- Unique in its namespace.
    name VARCHAR(255) COLLATE "C" NOT NULL,
    -- Its newest version, counted from 1.
    version BIGINT NOT NULL,
    -- When its first version was saved.
    created_at_ms BIGINT NOT NULL,
    -- When its newest version was saved.
    updated_at_ms BIGINT NOT NULL,
    PRIMARY KEY (id),
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
    author VARCHAR(255) COLLATE "C" NOT NULL,
    -- When it was saved.
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (calendar_id, version)
);

-- Which jobs follow from which: the parents that the newest definition of a job names.
CREATE TABLE job_parent (
    -- The job that follows.
    child_id BIGINT NOT NULL,
    -- The job that it follows from.
    parent_id BIGINT NOT NULL,
    -- How the parent must have ended.
    on_what VARCHAR(16) COLLATE "C" NOT NULL
        CHECK (on_what IN ('success', 'failure', 'either')),
    PRIMARY KEY (child_id, parent_id)
);

CREATE INDEX job_parent_parent ON job_parent (parent_id);

-- Jobs with several parents that wait for the rest of them: one row per job and fire, gone when it is released.
CREATE TABLE run_join (
    -- The run that the fire began with.
    root_id BIGINT NOT NULL,
    -- The job that waits.
    job_id BIGINT NOT NULL,
    -- How many of its parents belong to this fire.
    wanted_count INTEGER NOT NULL,
    -- How many of them have ended.
    ended_count INTEGER NOT NULL,
    -- The first parent that did not end as the job wants; NULL while all did.
    refused_by BIGINT,
    -- When the first of them ended.
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (root_id, job_id)
);
