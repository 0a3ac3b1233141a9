-- Scripts that the server keeps, for SQLite.

-- Scripts by name; what is in them is in script_version.
CREATE TABLE script (
    -- Its id, made by a node.
    id INTEGER NOT NULL PRIMARY KEY,
    -- Its tenant.
    namespace_id BIGINT NOT NULL REFERENCES namespace (id),
    -- Unique in its namespace.
    name TEXT NOT NULL
        CHECK (length(name) <= 255),
    -- What it is written in: the handler that runs it.
    language TEXT NOT NULL
        CHECK (length(language) <= 32),
    -- Its newest version, counted from 1.
    version BIGINT NOT NULL,
    -- When its first version was saved.
    created_at_ms BIGINT NOT NULL,
    -- When its newest version was saved.
    updated_at_ms BIGINT NOT NULL,
    CONSTRAINT script_key UNIQUE (namespace_id, name)
);

-- The versions of scripts that are kept.
CREATE TABLE script_version (
    -- The script.
    script_id BIGINT NOT NULL,
    -- Counted from 1.
    version BIGINT NOT NULL,
    -- SHA-256 of its text, in hex.
    hash TEXT NOT NULL
        CHECK (length(hash) <= 64),
    -- How many bytes its text has.
    size_bytes BIGINT NOT NULL,
    -- What its author said about it.
    note TEXT NOT NULL,
    -- A signature of it in base64; NULL for none.
    signature TEXT
        CHECK (length(signature) <= 255),
    -- Who saved it.
    author TEXT NOT NULL
        CHECK (length(author) <= 255),
    -- When it was saved.
    created_at_ms BIGINT NOT NULL,
    -- Its text.
    source TEXT NOT NULL,
    PRIMARY KEY (script_id, version)
);

-- Which script the newest definition of a job names.
CREATE TABLE script_use (
    -- The job.
    job_id BIGINT NOT NULL,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- The script.
    script_name TEXT NOT NULL
        CHECK (length(script_name) <= 255),
    -- Which version of it; 0 for the newest.
    version BIGINT NOT NULL,
    PRIMARY KEY (job_id)
) WITHOUT ROWID;

CREATE INDEX script_use_name ON script_use (namespace_id, script_name, version);
