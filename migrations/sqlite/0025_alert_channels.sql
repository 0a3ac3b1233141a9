-- Where alerts are sent, the messages on their way there, and each try to deliver one, for SQLite.

-- Where alerts are sent.
CREATE TABLE alert_channel (
    -- Its id, made by a node.
    id INTEGER NOT NULL PRIMARY KEY,
    -- Its tenant.
    namespace_id BIGINT NOT NULL REFERENCES namespace (id),
    -- Unique in its namespace.
    name TEXT NOT NULL
        CHECK (length(name) <= 255),
    -- The service.
    kind TEXT NOT NULL
        CHECK (kind IN ('email', 'webhook', 'slack', 'teams', 'pagerduty', 'dingtalk', 'wecom', 'feishu', 'ntfy')),
    -- How the service is used, as JSON without secrets.
    settings TEXT NOT NULL,
    -- What is secret of it, as JSON: encrypted where the server has a key.
    secret TEXT NOT NULL,
    -- The language of its messages.
    lang TEXT NOT NULL
        CHECK (lang IN ('en', 'zh')),
    -- Whether messages are sent: 1 or 0.
    is_enabled SMALLINT NOT NULL,
    -- The node that has the lease of it, or had it last; 0 for none.
    held_by BIGINT NOT NULL DEFAULT 0,
    -- Until then no other node leases it; a receiver that cannot be reached is left alone until then too.
    held_until_ms BIGINT NOT NULL DEFAULT 0,
    -- When it was made.
    created_at_ms BIGINT NOT NULL,
    -- When it was last saved.
    updated_at_ms BIGINT NOT NULL,
    CONSTRAINT alert_channel_key UNIQUE (namespace_id, name)
);

-- Messages about incidents: written in the transaction of the incident's change, sent after it.
CREATE TABLE alert_message (
    -- Its id, made by a node: receivers get it with each try.
    id INTEGER NOT NULL PRIMARY KEY,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- Where it is sent.
    channel_id BIGINT NOT NULL,
    -- The incident that it is about.
    incident_id BIGINT NOT NULL,
    -- Why it is sent.
    kind TEXT NOT NULL
        CHECK (kind IN ('firing', 'resolved', 'reminder', 'digest', 'escalated', 'acknowledged', 'test')),
    -- Counts the messages of one kind about one incident to one channel.
    number INTEGER NOT NULL,
    -- What it reports, as JSON.
    notice TEXT NOT NULL,
    -- Whether it waits, was delivered, or is no longer tried.
    state TEXT NOT NULL
        CHECK (state IN ('waiting', 'sent', 'given_up')),
    -- How often sending was tried.
    try_count INTEGER NOT NULL,
    -- While it waits: when it is tried next.
    next_try_at_ms BIGINT NOT NULL,
    -- When it was written.
    created_at_ms BIGINT NOT NULL,
    CONSTRAINT alert_message_key UNIQUE (incident_id, channel_id, kind, number)
);

CREATE INDEX alert_message_due ON alert_message (state, next_try_at_ms);

CREATE INDEX alert_message_turn ON alert_message (channel_id, state, next_try_at_ms);

-- Each try to deliver a message.
CREATE TABLE alert_delivery (
    -- Its id, made by a node: it rises with time.
    id INTEGER NOT NULL PRIMARY KEY,
    -- The channel.
    channel_id BIGINT NOT NULL,
    -- The message.
    message_id BIGINT NOT NULL,
    -- The incident; NULL for a test.
    incident_id BIGINT,
    -- Why the message was sent.
    kind TEXT NOT NULL
        CHECK (kind IN ('firing', 'resolved', 'reminder', 'digest', 'escalated', 'acknowledged', 'test')),
    -- Which try of the message it was, from 1.
    try_number INTEGER NOT NULL,
    -- When it began.
    at_ms BIGINT NOT NULL,
    -- How long it took.
    latency_ms BIGINT NOT NULL,
    -- What was decided.
    verdict TEXT NOT NULL
        CHECK (verdict IN ('sent', 'retry', 'given_up')),
    -- The status that the service answered with; 0 without an answer.
    status INTEGER NOT NULL,
    -- Why it was not delivered; NULL where it was.
    error TEXT
);

CREATE INDEX alert_delivery_channel ON alert_delivery (channel_id, id);
