-- Who may do what, who is signed in, and what was done, for SQLite.

-- People who can sign in.
CREATE TABLE account (
    -- Its id, made by a node.
    id INTEGER NOT NULL PRIMARY KEY,
    -- What is typed to sign in; unique.
    name TEXT NOT NULL
        CHECK (length(name) <= 255),
    -- What people read.
    display_name TEXT NOT NULL
        CHECK (length(display_name) <= 255),
    -- argon2id of the password, as a PHC string; NULL for somebody who cannot sign in by one.
    password_hash TEXT
        CHECK (length(password_hash) <= 255),
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
    subject_kind TEXT NOT NULL
        CHECK (subject_kind IN ('account', 'token')),
    -- The account or the token.
    subject_id BIGINT NOT NULL,
    -- The role.
    role TEXT NOT NULL
        CHECK (role IN ('viewer', 'operator', 'editor', 'admin', 'executor')),
    -- Where; 0 is every namespace.
    namespace_id BIGINT NOT NULL,
    -- Which app of it; 0 is every app.
    app_id BIGINT NOT NULL,
    PRIMARY KEY (subject_kind, subject_id, role, namespace_id, app_id)
) WITHOUT ROWID;

CREATE INDEX role_grant_place ON role_grant (namespace_id, role, app_id);

-- Sign-ins that last.
CREATE TABLE web_session (
    -- Its id, made by a node.
    id INTEGER NOT NULL PRIMARY KEY,
    -- SHA-256 of what the cookie carries, in hex.
    hash TEXT NOT NULL
        CHECK (length(hash) <= 255),
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
    address TEXT NOT NULL
        CHECK (length(address) <= 255),
    -- By which browser, as that says.
    user_agent TEXT NOT NULL
        CHECK (length(user_agent) <= 255),
    CONSTRAINT web_session_key UNIQUE (hash)
);

CREATE INDEX web_session_account ON web_session (account_id, id);

CREATE INDEX web_session_token ON web_session (token_id, id);

CREATE INDEX web_session_seen ON web_session (last_seen_at_ms);

CREATE INDEX web_session_end ON web_session (expires_at_ms);

-- Links that work once: to sign in, or to make the first account.
CREATE TABLE sign_in_link (
    -- SHA-256 of its secret, in hex.
    hash TEXT NOT NULL
        CHECK (length(hash) <= 255),
    -- What it is for.
    purpose TEXT NOT NULL
        CHECK (purpose IN ('setup', 'sign_in')),
    -- As whom it signs in.
    account_id BIGINT,
    -- With the rights of which token it signs in.
    token_id BIGINT,
    -- Until when it works.
    expires_at_ms BIGINT NOT NULL,
    PRIMARY KEY (hash)
) WITHOUT ROWID;

CREATE INDEX sign_in_link_end ON sign_in_link (expires_at_ms);

-- Attempts to sign in, counted by account and by address, in a bounded number of buckets.
CREATE TABLE sign_in_attempt (
    -- Which account or address: a hash.
    bucket INTEGER NOT NULL PRIMARY KEY,
    -- How many there were since then.
    attempt_count BIGINT NOT NULL,
    -- When the first of them was.
    since_at_ms BIGINT NOT NULL
);

-- What was done, by whom and from where. Rows are never changed.
CREATE TABLE audit (
    -- Its id, made by a node; rises with time.
    id INTEGER NOT NULL PRIMARY KEY,
    -- When.
    at_ms BIGINT NOT NULL,
    -- Who: the name of an account or of a token.
    actor TEXT NOT NULL
        CHECK (length(actor) <= 255),
    -- By what means they came in.
    means TEXT NOT NULL
        CHECK (means IN ('session', 'token', 'executor', 'system', 'anonymous')),
    -- From where.
    address TEXT
        CHECK (length(address) <= 255),
    -- Under which id the request stands in the log of the server.
    request_id TEXT
        CHECK (length(request_id) <= 255),
    -- What: a noun and a verb.
    action TEXT NOT NULL
        CHECK (length(action) <= 255),
    -- To what: the name or id that the noun goes with.
    object TEXT NOT NULL
        CHECK (length(object) <= 255),
    -- Name of the namespace that it lies in; no reference, for entries outlive it.
    namespace TEXT
        CHECK (length(namespace) <= 255),
    -- What became of it.
    verdict TEXT NOT NULL
        CHECK (verdict IN ('allowed', 'denied', 'failed')),
    -- What it was before, as JSON, without secrets.
    before_document TEXT,
    -- What it was afterwards.
    after_document TEXT
);

CREATE INDEX audit_actor ON audit (actor, id);

CREATE INDEX audit_object ON audit (object, id);

CREATE INDEX audit_namespace ON audit (namespace, id);
