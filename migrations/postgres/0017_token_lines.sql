-- Which token a line of tokens began with, and which token an entry of the audit log belongs to, for PostgreSQL.

-- The token that the line of this one began with: tokens without an account are counted by it. NULL stands for the token
-- itself.
ALTER TABLE api_token ADD COLUMN line_id BIGINT;

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
UPDATE api_token SET line_id = (SELECT line.first_id FROM line WHERE line.id = api_token.id);

CREATE INDEX api_token_line ON api_token (line_id, id);

-- The token that the caller used; NULL where there was none.
ALTER TABLE audit ADD COLUMN token_id BIGINT;
