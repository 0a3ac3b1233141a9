-- Which token made a token, a sign-in or a link, so that none of them outlives it, for SQLite.

-- The token that made this one; NULL for one that was made in the console after a sign-in, or by the server.
ALTER TABLE api_token ADD COLUMN minted_by BIGINT;

CREATE INDEX api_token_minted ON api_token (minted_by, id);

-- The token that made the link by which an account signed in; NULL where no token did.
ALTER TABLE web_session ADD COLUMN minted_by BIGINT;

CREATE INDEX web_session_minted ON web_session (minted_by, id);

-- The token that made the link for an account; NULL where no token did.
ALTER TABLE sign_in_link ADD COLUMN minted_by BIGINT;
