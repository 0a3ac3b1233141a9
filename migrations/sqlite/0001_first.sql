-- The first schema, for SQLite. Instants are milliseconds since 1970 in UTC; names compare byte by byte.
-- The same tables, columns and indexes as in ../postgres and ../mysql.

-- How far this schema reaches back. One row.
CREATE TABLE schema_compat (
    -- Always 1.
    id INTEGER NOT NULL PRIMARY KEY,
    -- The oldest server that understands this schema; an older one refuses to start.
    min_server TEXT NOT NULL
        CHECK (length(min_server) <= 255)
);

-- Tenants and environments.
CREATE TABLE namespace (
    -- Its id; 1 is `default`.
    id INTEGER NOT NULL PRIMARY KEY,
    -- Unique.
    name TEXT NOT NULL
        CHECK (length(name) <= 255),
    -- When it was made.
    created_at_ms BIGINT NOT NULL,
    CONSTRAINT namespace_key UNIQUE (name)
);

-- Groups of executors that run the same handlers.
CREATE TABLE app (
    -- Its id, made by a node.
    id INTEGER NOT NULL PRIMARY KEY,
    -- Its tenant.
    namespace_id BIGINT NOT NULL REFERENCES namespace (id),
    -- Unique in its namespace.
    name TEXT NOT NULL
        CHECK (length(name) <= 255),
    -- Its switch: active, draining (no new runs), stopped.
    state TEXT NOT NULL DEFAULT 'active'
        CHECK (state IN ('active', 'draining', 'stopped')),
    -- When it was made.
    created_at_ms BIGINT NOT NULL,
    CONSTRAINT app_key UNIQUE (namespace_id, name)
);

-- Jobs; what changes with each fire is in job_due.
CREATE TABLE job (
    -- Its id, made by a node.
    id INTEGER NOT NULL PRIMARY KEY,
    -- Its tenant.
    namespace_id BIGINT NOT NULL REFERENCES namespace (id),
    -- Unique in its namespace among the jobs that are not deleted.
    name TEXT NOT NULL
        CHECK (length(name) <= 255),
    -- The app of its newest definition.
    app_id BIGINT NOT NULL REFERENCES app (id),
    -- Its newest definition, counted from 1: what If-Match guards.
    version BIGINT NOT NULL,
    -- What fixed rates count from.
    anchor_at_ms BIGINT NOT NULL,
    -- When its first definition was saved.
    created_at_ms BIGINT NOT NULL,
    -- When its newest definition was saved.
    updated_at_ms BIGINT NOT NULL,
    -- 0, or its own id once it is deleted: so its name is free again.
    retired BIGINT NOT NULL DEFAULT 0,
    -- The calendar that its newest definition uses, if it uses one; NULL once the job is deleted.
    calendar_id BIGINT,
    -- Which version of that.
    calendar_version BIGINT,
    -- The definition that code declared last, as JSON; NULL for a job that no code declares.
    declared TEXT,
    -- When an executor last declared something new of it.
    declared_at_ms BIGINT,
    -- Since when no code of the app declares it any more; NULL while some does.
    undeclared_at_ms BIGINT,
    CONSTRAINT job_key UNIQUE (namespace_id, name, retired)
);

CREATE INDEX job_calendar ON job (calendar_id, calendar_version)
    WHERE calendar_id IS NOT NULL;

-- Every definition that a job ever had.
CREATE TABLE job_version (
    -- The job.
    job_id BIGINT NOT NULL REFERENCES job (id),
    -- Counted from 1.
    version BIGINT NOT NULL,
    -- The app that this definition names.
    app_id BIGINT NOT NULL,
    -- The calendar that it uses, if it uses one.
    calendar_id BIGINT,
    -- Which version of that.
    calendar_version BIGINT,
    -- The definition, as JSON.
    spec TEXT NOT NULL,
    -- Who saved it.
    author TEXT NOT NULL
        CHECK (length(author) <= 255),
    -- When it was saved.
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (job_id, version)
) WITHOUT ROWID;

-- When each job fires next: the narrow table that the scan reads and a claim writes.
CREATE TABLE job_due (
    -- The job.
    job_id INTEGER NOT NULL PRIMARY KEY REFERENCES job (id),
    -- The first fire that has no row in run; NULL where it will not fire.
    next_fire_at_ms BIGINT,
    -- The definition that the next fire comes from.
    version BIGINT NOT NULL,
    -- 1 where next_fire_at_ms is rightly NULL: the definition fires no more, or not by itself, or not before its open
    -- run ends. What is NULL without it is healed.
    is_over SMALLINT NOT NULL DEFAULT 0
        CHECK (is_over IN (0, 1)),
    -- The length of a fixed delay, while the job is enabled.
    delay_ms BIGINT,
    -- The open run whose end gives the next fire of a fixed delay.
    follows_run_id BIGINT,
    -- The node that owns the open runs of the job; 0 for none yet.
    home BIGINT NOT NULL DEFAULT 0,
    -- Rises at each change of home: the first half of the fencing token.
    term BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX job_due_next ON job_due (home, next_fire_at_ms)
    WHERE next_fire_at_ms IS NOT NULL;

CREATE INDEX job_due_stuck ON job_due (job_id)
    WHERE next_fire_at_ms IS NULL AND is_over = 0;

CREATE INDEX job_due_follows ON job_due (follows_run_id)
    WHERE follows_run_id IS NOT NULL;

-- The admin servers of the cluster, with their leases.
CREATE TABLE node (
    -- Its identity across restarts.
    id INTEGER NOT NULL PRIMARY KEY,
    -- Configured, or kept in its data directory.
    name TEXT NOT NULL
        CHECK (length(name) <= 255),
    -- Differs from that of every other living node: part of the ids that it makes.
    ordinal INTEGER NOT NULL,
    -- Rises each time the lease is taken anew, and when the node is fenced.
    epoch BIGINT NOT NULL,
    -- Until when the node may act, by the clock of this database.
    lease_until_ms BIGINT NOT NULL,
    -- When the lease of the epoch before ended; equal to lease_until_ms once the node is fenced.
    prior_lease_until_ms BIGINT NOT NULL DEFAULT 0,
    -- Its switch: active, draining (claims nothing), stopped.
    state TEXT NOT NULL DEFAULT 'active'
        CHECK (state IN ('active', 'draining', 'stopped')),
    -- Where executors reach it, if it was told.
    advertise_url TEXT,
    -- Version of its program.
    server_version TEXT NOT NULL
        CHECK (length(server_version) <= 255),
    -- 1 while its process is on its way out: it takes nothing new, and inherits nothing.
    is_leaving INTEGER NOT NULL DEFAULT 0
        CHECK (is_leaving IN (0, 1)),
    -- How it shares out jobs without a living home.
    claim_strategy TEXT NOT NULL DEFAULT 'default'
        CHECK (claim_strategy IN ('default', 'id_hash', 'least_count', 'weight')),
    -- Its share, where that goes by weight.
    weight BIGINT NOT NULL DEFAULT 1,
    -- How many jobs it is home to, by its last count.
    job_count BIGINT NOT NULL DEFAULT 0,
    -- How far the wall clock of its host is ahead of this database's.
    skew_ms BIGINT NOT NULL DEFAULT 0,
    -- How many times it tried to claim a job since its process started.
    claims_tried BIGINT NOT NULL DEFAULT 0,
    -- How many of those another node had locked or moved.
    claims_lost BIGINT NOT NULL DEFAULT 0,
    -- How many of its statements were refused since then because its epoch was gone.
    refused_count BIGINT NOT NULL DEFAULT 0,
    -- When this epoch began.
    started_at_ms BIGINT NOT NULL,
    CONSTRAINT node_key UNIQUE (name)
);

-- Executors as they introduced themselves; one row per start.
CREATE TABLE executor (
    -- The incarnation.
    id INTEGER NOT NULL PRIMARY KEY,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- Its app.
    app_id BIGINT NOT NULL,
    -- Its stable name.
    name TEXT NOT NULL
        CHECK (length(name) <= 255),
    -- The incarnation before, if it proved one.
    predecessor_id BIGINT,
    -- Version of its SDK.
    sdk_version TEXT NOT NULL
        CHECK (length(sdk_version) <= 255),
    -- Its labels, as a JSON object.
    labels TEXT NOT NULL,
    -- For the weight router.
    weight BIGINT NOT NULL,
    -- How many runs it takes at the same time.
    slots BIGINT NOT NULL,
    -- What its handlers say of their parameters, as a JSON object from names to schemas.
    params_schemas TEXT NOT NULL,
    -- Names of its handlers, as a JSON array.
    handlers TEXT NOT NULL,
    -- When it was first seen.
    first_seen_at_ms BIGINT NOT NULL
);

-- Streams between nodes and executors, so that every node knows what the others hear.
CREATE TABLE executor_session (
    -- The end at the node.
    node_id BIGINT NOT NULL,
    -- The end at the executor.
    executor_id BIGINT NOT NULL,
    -- The epoch of the node that holds or held the stream.
    node_epoch BIGINT NOT NULL,
    -- The app of the executor.
    app_id BIGINT NOT NULL,
    -- When the stream was opened.
    connected_at_ms BIGINT NOT NULL,
    -- When the node last said that it hears the executor.
    last_seen_at_ms BIGINT NOT NULL,
    -- When the stream ended, or else the lease under which it was open; NULL while it is open, as far as the node has said.
    ended_at_ms BIGINT,
    PRIMARY KEY (node_id, executor_id)
) WITHOUT ROWID;

CREATE INDEX executor_session_seen ON executor_session (last_seen_at_ms);

CREATE INDEX executor_session_ended ON executor_session (ended_at_ms);

-- The ledger: one row per execution of a fire, with its verdict.
CREATE TABLE run (
    -- Made by the node that claimed it; rises with time.
    id INTEGER NOT NULL PRIMARY KEY,
    -- The tenant.
    namespace_id BIGINT NOT NULL,
    -- The job: a part of the key.
    job_id BIGINT NOT NULL,
    -- The definition that it runs under.
    job_version BIGINT NOT NULL,
    -- Where its executors are.
    app_id BIGINT NOT NULL,
    -- The planned instant: a part of the key.
    fire_at_ms BIGINT NOT NULL,
    -- 0 for the schedule, else the id of the request, backfill or root run: a part of the key.
    cause BIGINT NOT NULL,
    -- 0 for an unsharded run, -1 for the row that stands for a whole broadcast: a part of the key.
    shard_index INTEGER NOT NULL,
    -- Number of shards; NULL while a broadcast has not been expanded.
    shard_total INTEGER,
    -- Why it exists.
    trigger_kind TEXT NOT NULL
        CHECK (trigger_kind IN ('cron', 'interval', 'once', 'manual', 'api', 'parent', 'backfill', 'misfire')),
    -- Where it stands: the first three are open, the others are verdicts.
    status TEXT NOT NULL
        CHECK (status IN (
            'pending', 'waiting', 'running', 'succeeded', 'failed', 'timed_out', 'cancelled', 'unknown',
            'skipped')),
    -- Why it stands there, where the status alone does not say it.
    reason TEXT
        CHECK (reason IN (
            'misfire', 'overlap', 'calendar', 'paused', 'changed', 'deleted', 'no_executor', 'expired', 'retry',
            'executor_lost', 'not_received', 'refused', 'requested', 'parent', 'covered', 'handler', 'stopped')),
    -- Counts from 1.
    attempt INTEGER NOT NULL,
    -- When it may start: fire_at_ms, or later by jitter, backoff or queueing.
    due_at_ms BIGINT NOT NULL,
    -- The node that owns it while it is open.
    node_id BIGINT NOT NULL,
    -- The epoch under which that node does.
    node_epoch BIGINT NOT NULL,
    -- Parameters of this run alone, as JSON; NULL stands for those of the job.
    params TEXT,
    -- Stable name of the executor that has or had it.
    executor TEXT
        CHECK (length(executor) <= 255),
    -- Incarnation of that executor.
    executor_id BIGINT,
    -- Set before an at-most-once run is sent.
    marked_at_ms BIGINT,
    -- When the handler began.
    started_at_ms BIGINT,
    -- When the verdict was made.
    finished_at_ms BIGINT,
    -- One line for people: the error, or the summary of the handler.
    message TEXT,
    -- What the handler returned, as JSON.
    result TEXT,
    -- How often an executor was lost with it: counted apart from retries.
    lost_count INTEGER NOT NULL DEFAULT 0,
    -- Shards that have no verdict yet; only on the row that stands for all shards.
    open_shards INTEGER,
    -- Runs that follow from it and have no verdict yet; only where the job is over with its children.
    open_children INTEGER,
    -- The run that this one follows from: the row of its shards, a parent, a run retried by hand.
    parent_id BIGINT,
    -- How it came to its executor, in a short form for people: who could have had it, who refused, what it waited for.
    trace TEXT,
    -- Who asked to cancel it.
    cancel_by TEXT
        CHECK (length(cancel_by) <= 255),
    -- For a row that stands for a span of skipped fires: the last of them.
    span_end_at_ms BIGINT,
    -- How many fires it stands for.
    span_count BIGINT NOT NULL,
    CONSTRAINT run_key UNIQUE (job_id, fire_at_ms, cause, shard_index)
);

CREATE INDEX run_open ON run (node_id, node_epoch, status, due_at_ms)
    WHERE status IN ('pending', 'waiting', 'running');

CREATE INDEX run_list ON run (namespace_id, id);

CREATE INDEX run_parent ON run (parent_id)
    WHERE parent_id IS NOT NULL;

CREATE INDEX run_trouble ON run (namespace_id, id)
    WHERE status IN ('failed', 'timed_out', 'cancelled', 'unknown', 'skipped');

-- Attempts that are over because another one followed; the newest attempt is in run.
CREATE TABLE run_attempt (
    -- The run.
    run_id BIGINT NOT NULL,
    -- Counts from 1.
    attempt INTEGER NOT NULL,
    -- How it ended; unknown where its executor was lost.
    status TEXT NOT NULL
        CHECK (status IN (
            'pending', 'waiting', 'running', 'succeeded', 'failed', 'timed_out', 'cancelled', 'unknown',
            'skipped')),
    -- Why the next one exists.
    reason TEXT
        CHECK (reason IN (
            'misfire', 'overlap', 'calendar', 'paused', 'changed', 'deleted', 'no_executor', 'expired', 'retry',
            'executor_lost', 'not_received', 'refused', 'requested', 'parent', 'covered', 'handler', 'stopped')),
    -- Stable name of the executor that had it.
    executor TEXT
        CHECK (length(executor) <= 255),
    -- Incarnation of that executor.
    executor_id BIGINT,
    -- When its handler began.
    started_at_ms BIGINT,
    -- When it ended.
    finished_at_ms BIGINT,
    -- Its error.
    message TEXT,
    PRIMARY KEY (run_id, attempt)
) WITHOUT ROWID;

-- Open runs that somebody asked to cancel; a row goes when its run is over.
CREATE TABLE run_cancel (
    -- The run.
    run_id INTEGER NOT NULL PRIMARY KEY,
    -- Who asked first.
    requested_by TEXT NOT NULL
        CHECK (length(requested_by) <= 255),
    -- When.
    asked_at_ms BIGINT NOT NULL
);

-- What runs wrote, in chunks of lines.
CREATE TABLE run_log (
    -- The run.
    run_id BIGINT NOT NULL,
    -- Its attempt.
    attempt INTEGER NOT NULL,
    -- Counts the chunks of the attempt from 0.
    sequence BIGINT NOT NULL,
    -- How many lines it holds.
    line_count INTEGER NOT NULL,
    -- How data is written: plain is JSON lines, deflate is the same compressed.
    codec TEXT NOT NULL
        CHECK (codec IN ('plain', 'deflate')),
    -- The lines.
    data BLOB NOT NULL,
    -- The tenant, for the limit of size; NULL in the line that is left of a removed log, which does not count.
    namespace_id BIGINT,
    -- The length of data.
    byte_count BIGINT NOT NULL,
    PRIMARY KEY (run_id, attempt, sequence)
);
-- Answers how much the newest logs of a tenant take, and which the oldest are, without the data.
CREATE INDEX run_log_size ON run_log (namespace_id, run_id, byte_count);

-- Messages to the world (alerts, webhooks) that follow from a transaction and are sent after it.
CREATE TABLE outbox (
    -- Its id, made by a node.
    id INTEGER NOT NULL PRIMARY KEY,
    -- The tenant.
    namespace_id BIGINT NOT NULL,
    -- What it is.
    kind TEXT NOT NULL
        CHECK (length(kind) <= 255),
    -- The run that it is about.
    run_id BIGINT,
    -- What is sent, as JSON.
    payload TEXT NOT NULL,
    -- How often sending was tried.
    attempt_count INTEGER NOT NULL DEFAULT 0,
    -- When it is tried next.
    due_at_ms BIGINT NOT NULL,
    -- When it was written.
    created_at_ms BIGINT NOT NULL
);

CREATE INDEX outbox_due ON outbox (due_at_ms);

-- Tokens of the API; only their hashes are kept.
CREATE TABLE api_token (
    -- Its id, made by a node.
    id INTEGER NOT NULL PRIMARY KEY,
    -- What it is for: api is the API as far as its roles reach, executor is opening executors' sessions.
    kind TEXT NOT NULL
        CHECK (kind IN ('api', 'executor')),
    -- For people.
    name TEXT NOT NULL
        CHECK (length(name) <= 255),
    -- The account that may do at least as much; NULL for one that belongs to the server.
    owner_id BIGINT,
    -- The namespace that requests without one mean; NULL stands for default.
    namespace_id BIGINT,
    -- SHA-256 of the token, in hex.
    hash TEXT NOT NULL
        CHECK (length(hash) <= 255),
    -- What the token begins with, so that people know which it is.
    prefix TEXT NOT NULL
        CHECK (length(prefix) <= 255),
    -- 1 where executors that it lets in may declare jobs.
    declares SMALLINT NOT NULL
        CHECK (declares IN (0, 1)),
    -- When it was made.
    created_at_ms BIGINT NOT NULL,
    -- When it ends.
    expires_at_ms BIGINT,
    -- When it was last used, to the minute.
    last_used_at_ms BIGINT,
    -- When somebody ended it.
    revoked_at_ms BIGINT,
    CONSTRAINT api_token_key UNIQUE (hash)
);

CREATE INDEX api_token_owner ON api_token (owner_id, id);

INSERT INTO schema_compat (id, min_server) VALUES (1, '0.1.0');
INSERT INTO namespace (id, name, created_at_ms) VALUES (1, 'default', 0);
