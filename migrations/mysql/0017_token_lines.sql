-- Which token a line of tokens began with, and which token an entry of the audit log belongs to, for MySQL and MariaDB.
-- MySQL has no IF NOT EXISTS for a column or an index, and this must be able to run again.

SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'api_token' AND column_name = 'line_id');

-- The token that the line of this one began with: tokens without an account are counted by it. NULL stands for the token
-- itself.
SET @add_column = IF(@has_column = 0, 'ALTER TABLE api_token ADD COLUMN line_id BIGINT', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;

UPDATE api_token token JOIN (
    WITH RECURSIVE line (id, first_id) AS (
        SELECT api_token.id, api_token.id FROM api_token
        WHERE api_token.minted_by IS NULL OR api_token.minted_by IN (
            SELECT role_grant.subject_id FROM role_grant
            WHERE role_grant.subject_kind = 'token' AND role_grant.role = 'admin' AND role_grant.namespace_id = 0
        )
        UNION
        SELECT child.id, line.first_id FROM api_token child JOIN line ON child.minted_by = line.id
        WHERE child.minted_by NOT IN (
            SELECT role_grant.subject_id FROM role_grant
            WHERE role_grant.subject_kind = 'token' AND role_grant.role = 'admin' AND role_grant.namespace_id = 0
        )
    )
    SELECT line.id, line.first_id FROM line
) begun ON begun.id = token.id SET token.line_id = begun.first_id WHERE token.line_id IS NULL;

SET @has_index = (SELECT COUNT(*) FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'api_token' AND index_name = 'api_token_line');

SET @add_index = IF(@has_index = 0, 'CREATE INDEX api_token_line ON api_token (line_id, id)', 'DO 0');

PREPARE add_index FROM @add_index;

EXECUTE add_index;

DEALLOCATE PREPARE add_index;

SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'audit' AND column_name = 'token_id');

-- The token that the caller used; NULL where there was none.
SET @add_column = IF(@has_column = 0, 'ALTER TABLE audit ADD COLUMN token_id BIGINT', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;
