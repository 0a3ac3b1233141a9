-- Fences that a server cannot send, since only others hear the executor, for SQLite.

-- A server has another one ask an executor what it has in hand of leases that have ended.
CREATE TABLE fence_request (
    -- The server that asks.
    asker_id BIGINT NOT NULL,
    -- The executor that is to be asked.
    executor_id BIGINT NOT NULL,
    -- When it was asked: distinguishes one question from the next.
    asked_at_ms BIGINT NOT NULL,
    -- The leases, as JSON: [[node, epoch], …].
    leases TEXT NOT NULL,
    -- When a server stored the answer; NULL while there is none.
    answered_at_ms BIGINT,
    -- The name of the executor at the server that asked it.
    executor TEXT
        CHECK (length(executor) <= 255),
    -- The attempts that it had in hand, or whose results, as JSON: [[run, attempt], …].
    held TEXT,
    PRIMARY KEY (asker_id, executor_id)
);
CREATE INDEX fence_request_asked ON fence_request (asked_at_ms);
