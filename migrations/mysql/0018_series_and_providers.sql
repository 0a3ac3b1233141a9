-- Which tokens are one token with changing secrets, and which accounts a provider signs in, for MySQL and MariaDB.
-- MySQL has no IF NOT EXISTS for a column or an index, and this must be able to run again.

SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'api_token' AND column_name = 'series_id');

-- The first token of the series: a token and the successors to which it rotated itself. Revoking one of them ends them all. NULL
-- stands for the token itself.
SET @add_column = IF(@has_column = 0, 'ALTER TABLE api_token ADD COLUMN series_id BIGINT', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;

SET @has_index = (SELECT COUNT(*) FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'api_token' AND index_name = 'api_token_series');

SET @add_index = IF(@has_index = 0, 'CREATE INDEX api_token_series ON api_token (series_id, id)', 'DO 0');

PREPARE add_index FROM @add_index;

EXECUTE add_index;

DEALLOCATE PREPARE add_index;

SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'account' AND column_name = 'provider_linked_at_ms');

-- When the account was linked to the provider of sign-ins: by its first sign-in there while it had no password, or by an admin. NULL:
-- with a password, the account cannot sign in by the provider.
SET @add_column = IF(@has_column = 0, 'ALTER TABLE account ADD COLUMN provider_linked_at_ms BIGINT', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;
