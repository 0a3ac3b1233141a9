-- Rules of alerts, their incidents and silences, for MySQL 8 and MariaDB.

-- The namespaces that have rules: a decision about their incidents holds this row.
CREATE TABLE IF NOT EXISTS alert_space (
    -- The tenant.
    namespace_id BIGINT NOT NULL PRIMARY KEY,
    -- Rises with each change of a rule, an incident or a silence: a decision made from an older version is not written.
    version BIGINT NOT NULL,
    -- 1 where a rule is about runs that fail or are skipped.
    watches_runs SMALLINT NOT NULL
        CHECK (watches_runs IN (0, 1))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What is watched, and who is told.
CREATE TABLE IF NOT EXISTS alert_rule (
    -- Its id, made by a node.
    id BIGINT NOT NULL PRIMARY KEY,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- Unique in its namespace.
    name VARCHAR(255) NOT NULL,
    -- Counts its definitions from 1: what If-Match guards.
    version BIGINT NOT NULL,
    -- The definition, as JSON.
    spec MEDIUMTEXT NOT NULL,
    -- Who saved it.
    author VARCHAR(255) NOT NULL,
    -- When it was made.
    created_at_ms BIGINT NOT NULL,
    -- When it was last saved.
    updated_at_ms BIGINT NOT NULL,
    -- When it is looked at next; NULL for a rule that waits for runs alone.
    check_at_ms BIGINT,
    -- How far the present look at its jobs has come, as JSON; NULL between two looks.
    sweep MEDIUMTEXT,
    CONSTRAINT alert_rule_key UNIQUE (namespace_id, name),
    KEY alert_rule_check (namespace_id, check_at_ms)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- A rule that holds for a subject, from firing to resolved.
CREATE TABLE IF NOT EXISTS incident (
    -- Its id, made by a node.
    id BIGINT NOT NULL PRIMARY KEY,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- The rule.
    rule_id BIGINT NOT NULL,
    -- Its name: the rule may be gone.
    rule_name VARCHAR(255) NOT NULL,
    -- The rule as it was when the incident last changed, as JSON.
    rule_spec MEDIUMTEXT NOT NULL,
    -- What it is about.
    subject_kind VARCHAR(16) NOT NULL
        CHECK (subject_kind IN ('job', 'app', 'namespace', 'node', 'token', 'group')),
    -- Its id; 0 for a group.
    subject_id BIGINT NOT NULL,
    -- Its name.
    subject_name VARCHAR(255) NOT NULL,
    -- The app, for a job.
    app_name VARCHAR(255),
    -- 1 while it is open, NULL afterwards: a rule has one open incident for each subject.
    is_open SMALLINT
        CHECK (is_open = 1),
    -- The incident that reports it together with others.
    group_id BIGINT,
    -- Since when the rule held.
    started_at_ms BIGINT NOT NULL,
    -- When it was last seen to hold.
    seen_at_ms BIGINT NOT NULL,
    -- When it was resolved.
    resolved_at_ms BIGINT,
    -- How many occurrences it has.
    occurrence_count BIGINT NOT NULL,
    -- How many of them were reported.
    reported_count BIGINT NOT NULL,
    -- When it was first reported; NULL while a silence keeps that back.
    fired_at_ms BIGINT,
    -- When it was last reported.
    reported_at_ms BIGINT,
    -- When it was reported to the channel that it escalates to.
    escalated_at_ms BIGINT,
    -- Who acknowledged it.
    acknowledged_by VARCHAR(255),
    -- When.
    acknowledged_at_ms BIGINT,
    -- How many messages there were about it: numbers them.
    message_count BIGINT NOT NULL,
    -- When it is looked at again; NULL once it is resolved.
    act_at_ms BIGINT,
    -- Some of its runs, as JSON.
    samples MEDIUMTEXT NOT NULL,
    CONSTRAINT incident_key UNIQUE (rule_id, subject_kind, subject_id, is_open),
    KEY incident_act (namespace_id, act_at_ms),
    KEY incident_list (namespace_id, id),
    KEY incident_open (namespace_id, is_open, id),
    KEY incident_subject (subject_kind, subject_id, id),
    KEY incident_group (group_id, is_open),
    KEY incident_age (resolved_at_ms)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What keeps messages back for a time.
CREATE TABLE IF NOT EXISTS silence (
    -- Its id, made by a node.
    id BIGINT NOT NULL PRIMARY KEY,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- What it matches, as JSON.
    spec MEDIUMTEXT NOT NULL,
    -- Who made it.
    author VARCHAR(255) NOT NULL,
    -- Why.
    reason MEDIUMTEXT NOT NULL,
    -- When.
    created_at_ms BIGINT NOT NULL,
    -- Its end.
    ends_at_ms BIGINT NOT NULL,
    KEY silence_end (namespace_id, ends_at_ms)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Runs that failed or were skipped, until the rules have looked at them.
CREATE TABLE IF NOT EXISTS alert_event (
    -- The run.
    run_id BIGINT NOT NULL PRIMARY KEY,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- Its app.
    app_id BIGINT NOT NULL,
    -- Its job.
    job_id BIGINT NOT NULL,
    -- How it ended.
    status VARCHAR(16) NOT NULL
        CHECK (status IN ('failed', 'timed_out', 'unknown', 'skipped')),
    -- Why.
    reason VARCHAR(32),
    -- Its planned instant.
    fire_at_ms BIGINT NOT NULL,
    KEY alert_event_turn (namespace_id, run_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
