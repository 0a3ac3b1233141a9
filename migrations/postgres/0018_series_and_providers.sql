-- Which tokens are one token with changing secrets, and which accounts a provider signs in, for PostgreSQL.

-- The first token of the series: a token and the successors to which it rotated itself. Revoking one of them ends them all. NULL
-- stands for the token itself.
ALTER TABLE api_token ADD COLUMN series_id BIGINT;

CREATE INDEX api_token_series ON api_token (series_id, id);

-- When the account was linked to the provider of sign-ins: by its first sign-in there while it had no password, or by an admin. NULL:
-- with a password, the account cannot sign in by the provider.
ALTER TABLE account ADD COLUMN provider_linked_at_ms BIGINT;
