-- Tokens of executors that speak XXL-JOB's protocol, and those that are registered by hand, for PostgreSQL.

-- Whether a token of the kind executor is for executors of one app that speak XXL-JOB's protocol, and for no others.
ALTER TABLE api_token ADD COLUMN is_xxl SMALLINT NOT NULL DEFAULT 0
    CHECK (is_xxl IN (0, 1));

-- When its address was registered by hand: such an executor stays, whether it registers itself or not. NULL for all others.
ALTER TABLE xxl_executor ADD COLUMN by_hand_at_ms BIGINT;

CREATE INDEX xxl_executor_by_hand ON xxl_executor (by_hand_at_ms);
