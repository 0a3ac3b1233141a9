-- Where alerts are sent, the messages on their way there, and each try to deliver one, for MySQL and MariaDB.

-- Where alerts are sent.
CREATE TABLE IF NOT EXISTS alert_channel (
    -- Its id, made by a node.
    id BIGINT NOT NULL,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- Unique in its namespace.
    name VARCHAR(255) NOT NULL,
    -- The service.
    kind VARCHAR(16) NOT NULL
        CHECK (kind IN ('email', 'webhook', 'slack', 'teams', 'pagerduty', 'dingtalk', 'wecom', 'feishu', 'ntfy')),
    -- How the service is used, as JSON without secrets.
    settings MEDIUMTEXT NOT NULL,
    -- What is secret of it, as JSON: encrypted where the server has a key.
    secret MEDIUMTEXT NOT NULL,
    -- The language of its messages.
    lang VARCHAR(8) NOT NULL
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
    PRIMARY KEY (id),
    CONSTRAINT alert_channel_key UNIQUE (namespace_id, name),
    FOREIGN KEY (namespace_id) REFERENCES namespace (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Messages about incidents: written in the transaction of the incident's change, sent after it.
CREATE TABLE IF NOT EXISTS alert_message (
    -- Its id, made by a node: receivers get it with each try.
    id BIGINT NOT NULL,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- Where it is sent.
    channel_id BIGINT NOT NULL,
    -- The incident that it is about.
    incident_id BIGINT NOT NULL,
    -- Why it is sent.
    kind VARCHAR(16) NOT NULL
        CHECK (kind IN ('firing', 'resolved', 'reminder', 'digest', 'escalated', 'acknowledged', 'test')),
    -- Counts the messages of one kind about one incident to one channel.
    number INTEGER NOT NULL,
    -- What it reports, as JSON.
    notice MEDIUMTEXT NOT NULL,
    -- Whether it waits, was delivered, or is no longer tried.
    state VARCHAR(16) NOT NULL
        CHECK (state IN ('waiting', 'sent', 'given_up')),
    -- How often sending was tried.
    try_count INTEGER NOT NULL,
    -- While it waits: when it is tried next.
    next_try_at_ms BIGINT NOT NULL,
    -- When it was written.
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT alert_message_key UNIQUE (incident_id, channel_id, kind, number),
    KEY alert_message_due (state, next_try_at_ms),
    KEY alert_message_turn (channel_id, state, next_try_at_ms)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Each try to deliver a message.
CREATE TABLE IF NOT EXISTS alert_delivery (
    -- Its id, made by a node: it rises with time.
    id BIGINT NOT NULL,
    -- The channel.
    channel_id BIGINT NOT NULL,
    -- The message.
    message_id BIGINT NOT NULL,
    -- The incident; NULL for a test.
    incident_id BIGINT,
    -- Why the message was sent.
    kind VARCHAR(16) NOT NULL
        CHECK (kind IN ('firing', 'resolved', 'reminder', 'digest', 'escalated', 'acknowledged', 'test')),
    -- Which try of the message it was, from 1.
    try_number INTEGER NOT NULL,
    -- When it began.
    at_ms BIGINT NOT NULL,
    -- How long it took.
    latency_ms BIGINT NOT NULL,
    -- What was decided.
    verdict VARCHAR(16) NOT NULL
        CHECK (verdict IN ('sent', 'retry', 'given_up')),
    -- The status that the service answered with; 0 without an answer.
    status INTEGER NOT NULL,
    -- Why it was not delivered; NULL where it was.
    error TEXT,
    PRIMARY KEY (id),
    KEY alert_delivery_channel (channel_id, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
