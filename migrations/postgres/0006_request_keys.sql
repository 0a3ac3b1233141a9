-- Calls that are made once, however often they are sent, for PostgreSQL.

-- Calls that their makers gave a key (Idempotency-Key), so that the same call again gets the same answer.
CREATE TABLE request_key (
    -- Whose key: SHA-256 of what the caller shows to be let in, in hex.
    scope VARCHAR(64) COLLATE "C" NOT NULL,
    -- The key, as the caller chose it.
    request_key VARCHAR(255) COLLATE "C" NOT NULL,
    -- What was asked: SHA-256 of method, path, query and body, in hex.
    fingerprint VARCHAR(64) COLLATE "C" NOT NULL,
    -- When the call began, or was last taken up again.
    began_at_ms BIGINT NOT NULL,
    -- The answer's status; NULL while there is none.
    status SMALLINT,
    -- The answer's headers that belong to it, as a JSON object.
    headers TEXT,
    -- The answer's body.
    body TEXT,
    PRIMARY KEY (scope, request_key)
);
CREATE INDEX request_key_began ON request_key (began_at_ms);
