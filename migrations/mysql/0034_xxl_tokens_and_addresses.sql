-- Tokens of executors that speak XXL-JOB's protocol, and those that are registered by hand, for MySQL and MariaDB.
-- MySQL has no IF NOT EXISTS for a column, and this must be able to run again.

SET @has_is_xxl = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'api_token' AND column_name = 'is_xxl');

-- Whether a token of the kind executor is for executors of one app that speak XXL-JOB's protocol, and for no others.
SET @add_is_xxl = IF(@has_is_xxl = 0,
    'ALTER TABLE api_token ADD COLUMN is_xxl SMALLINT NOT NULL DEFAULT 0 CHECK (is_xxl IN (0, 1))', 'DO 0');

PREPARE add_is_xxl FROM @add_is_xxl;

EXECUTE add_is_xxl;

DEALLOCATE PREPARE add_is_xxl;

SET @has_by_hand = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'xxl_executor' AND column_name = 'by_hand_at_ms');

-- When its address was registered by hand: such an executor stays, whether it registers itself or not. NULL for all others.
SET @add_by_hand = IF(@has_by_hand = 0, 'ALTER TABLE xxl_executor ADD COLUMN by_hand_at_ms BIGINT', 'DO 0');

PREPARE add_by_hand FROM @add_by_hand;

EXECUTE add_by_hand;

DEALLOCATE PREPARE add_by_hand;

SET @has_by_hand_index = (SELECT COUNT(*) FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'xxl_executor' AND index_name = 'xxl_executor_by_hand');

SET @add_by_hand_index = IF(@has_by_hand_index = 0, 'CREATE INDEX xxl_executor_by_hand ON xxl_executor (by_hand_at_ms)', 'DO 0');

PREPARE add_by_hand_index FROM @add_by_hand_index;

EXECUTE add_by_hand_index;

DEALLOCATE PREPARE add_by_hand_index;
