-- Calls that are made once, however often they are sent, for MySQL and MariaDB.

-- Calls that their makers gave a key (Idempotency-Key), so that the same call again gets the same answer.
CREATE TABLE IF NOT EXISTS request_key (
    -- Whose key: SHA-256 of what the caller shows to be let in, in hex.
    scope VARCHAR(64) NOT NULL,
    -- The key, as the caller chose it.
    request_key VARCHAR(255) NOT NULL,
    -- What was asked: SHA-256 of method, path, query and body, in hex.
    fingerprint VARCHAR(64) NOT NULL,
    -- When the call began, or was last taken up again.
    began_at_ms BIGINT NOT NULL,
    -- The answer's status; NULL while there is none.
    status SMALLINT,
    -- The answer's headers that belong to it, as a JSON object.
    headers LONGTEXT,
    -- The answer's body.
    body LONGTEXT,
    PRIMARY KEY (scope, request_key),
    KEY request_key_began (began_at_ms)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
