-- Calls that are made once, however often they are sent, for SQLite.

-- Calls that their makers gave a key (Idempotency-Key), so that the same call again gets the same answer.
CREATE TABLE request_key (
    -- Whose key: SHA-256 of what the caller shows to be let in, in hex.
    scope TEXT NOT NULL
        CHECK (length(scope) <= 64),
    -- The key, as the caller chose it.
    request_key TEXT NOT NULL
        CHECK (length(request_key) <= 255),
    -- What was asked: SHA-256 of method, path, query and body, in hex.
    fingerprint TEXT NOT NULL
        CHECK (length(fingerprint) <= 64),
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
