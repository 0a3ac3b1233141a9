-- Which token made a token, a sign-in or a link, so that none of them outlives it, for MySQL and MariaDB.
-- MySQL has no IF NOT EXISTS for a column or an index, and this must be able to run again.

SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'api_token' AND column_name = 'minted_by');

-- The token that made this one; NULL for one that was made in the console after a sign-in, or by the server.
SET @add_column = IF(@has_column = 0, 'ALTER TABLE api_token ADD COLUMN minted_by BIGINT', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;

SET @has_index = (SELECT COUNT(*) FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'api_token' AND index_name = 'api_token_minted');

SET @add_index = IF(@has_index = 0, 'CREATE INDEX api_token_minted ON api_token (minted_by, id)', 'DO 0');

PREPARE add_index FROM @add_index;

EXECUTE add_index;

DEALLOCATE PREPARE add_index;

SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'web_session' AND column_name = 'minted_by');

-- The token that made the link by which an account signed in; NULL where no token did.
SET @add_column = IF(@has_column = 0, 'ALTER TABLE web_session ADD COLUMN minted_by BIGINT', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;

SET @has_index = (SELECT COUNT(*) FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'web_session' AND index_name = 'web_session_minted');

SET @add_index = IF(@has_index = 0, 'CREATE INDEX web_session_minted ON web_session (minted_by, id)', 'DO 0');

PREPARE add_index FROM @add_index;

EXECUTE add_index;

DEALLOCATE PREPARE add_index;

SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'sign_in_link' AND column_name = 'minted_by');

-- The token that made the link for an account; NULL where no token did.
SET @add_column = IF(@has_column = 0, 'ALTER TABLE sign_in_link ADD COLUMN minted_by BIGINT', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;
