-- Who may do what, who is signed in, and what was done, for PostgreSQL.

-- People who can sign in.
CREATE TABLE account (
    -- Its id, made by a node.
    id BIGINT NOT NULL PRIMARY KEY,
    -- What is typed to sign in; unique.
    name VARCHAR(255) COLLATE "C" NOT NULL,
    -- What people read.
    display_name VARCHAR(255) COLLATE "C" NOT NULL,
    -- argon2id of the password, as a PHC string; NULL for somebody who cannot sign in by one.
    password_hash VARCHAR(255) COLLATE "C",
    -- 1 for an account that is locked out.
    disabled SMALLINT NOT NULL
        CHECK (disabled IN (0, 1)),
    -- When it was made.
    created_at_ms BIGINT NOT NULL,
    -- When its password was last set.
    password_changed_at_ms BIGINT,
    CONSTRAINT account_key UNIQUE (name)
);

-- Who has which role where: the rights of accounts and of tokens.
CREATE TABLE role_grant (
    -- Whose: of an account or of a token.
    subject_kind VARCHAR(16) COLLATE "C" NOT NULL
        CHECK (subject_kind IN ('account', 'token')),
    -- The account or the token.
    subject_id BIGINT NOT NULL,
    -- The role.
    role VARCHAR(16) COLLATE "C" NOT NULL
        CHECK (role IN ('viewer', 'operator', 'editor', 'admin', 'executor')),
    -- Where; 0 is every namespace.
    namespace_id BIGINT NOT NULL,
    -- Which app of it; 0 is every app.
    app_id BIGINT NOT NULL,
    PRIMARY KEY (subject_kind, subject_id, role, namespace_id, app_id)
);

CREATE INDEX role_grant_place ON role_grant (namespace_id, role, app_id);

-- Sign-ins that last.
CREATE TABLE web_session (
    -- Its id, made by a node.
    id BIGINT NOT NULL PRIMARY KEY,
    -- SHA-256 of what the cookie carries, in hex.
    hash VARCHAR(255) COLLATE "C" NOT NULL,
    -- The account; NULL for a sign-in by the link that a token's owner asked for.
    account_id BIGINT,
    -- That token.
    token_id BIGINT,
    -- When it began.
    created_at_ms BIGINT NOT NULL,
    -- When it was last used, to the minute.
    last_seen_at_ms BIGINT NOT NULL,
    -- When it ends whatever happens.
    expires_at_ms BIGINT NOT NULL,
    -- Where it began.
    address VARCHAR(255) COLLATE "C" NOT NULL,
    -- By which browser, as that says.
    user_agent VARCHAR(255) COLLATE "C" NOT NULL,
    CONSTRAINT web_session_key UNIQUE (hash)
);

CREATE INDEX web_session_account ON web_session (account_id, id);

CREATE INDEX web_session_token ON web_session (token_id, id);

CREATE INDEX web_session_seen ON web_session (last_seen_at_ms);

CREATE INDEX web_session_end ON web_session (expires_at_ms);

-- Links that work once: to sign in, or to make the first account.
CREATE TABLE sign_in_link (
    -- SHA-256 of its secret, in hex.
    hash VARCHAR(255) COLLATE "C" NOT NULL,
    -- What it is for.
    purpose VARCHAR(16) COLLATE "C" NOT NULL
        CHECK (purpose IN ('setup', 'sign_in')),
    -- As whom it signs in.
    account_id BIGINT,
    -- With the rights of which token it signs in.
    token_id BIGINT,
    -- Until when it works.
    expires_at_ms BIGINT NOT NULL,
    PRIMARY KEY (hash)
);

CREATE INDEX sign_in_link_end ON sign_in_link (expires_at_ms);

-- Attempts to sign in, counted by account and by address, in a bounded number of buckets.
CREATE TABLE sign_in_attempt (
    -- Which account or address: a hash.
    bucket BIGINT NOT NULL PRIMARY KEY,
    -- How many there were since then.
    attempt_count BIGINT NOT NULL,
    -- When the first of them was.
    since_at_ms BIGINT NOT NULL
);

-- What was done, by whom and from where. Rows are never changed.
CREATE TABLE audit (
    -- Its id, made by a node; rises with time.
    id BIGINT NOT NULL PRIMARY KEY,
    -- When.
    at_ms BIGINT NOT NULL,
    -- Who: the name of an account or of a token.
    actor VARCHAR(255) COLLATE "C" NOT NULL,
    -- By what means they came in.
    means VARCHAR(16) COLLATE "C" NOT NULL
        CHECK (means IN ('session', 'token', 'executor', 'system', 'anonymous')),
    -- From where.
    address VARCHAR(255) COLLATE "C",
    -- Under which id the request stands in the log of the server.
    request_id VARCHAR(255) COLLATE "C",
    -- What: a noun and a verb.
    action VARCHAR(255) COLLATE "C" NOT NULL,
    -- To what: the name or id that the noun goes with.
    object VARCHAR(255) COLLATE "C" NOT NULL,
    -- Name of the namespace that it lies in; no reference, for entries outlive it.
    namespace VARCHAR(255) COLLATE "C",
    -- What became of it.
    verdict VARCHAR(16) COLLATE "C" NOT NULL
        CHECK (verdict IN ('allowed', 'denied', 'failed')),
    -- What it was before, as JSON, without secrets.
    before_document TEXT,
    -- What it was afterwards.
    after_document TEXT
);

CREATE INDEX audit_actor ON audit (actor, id);

CREATE INDEX audit_object ON audit (object, id);

CREATE INDEX audit_namespace ON audit (namespace, id);
