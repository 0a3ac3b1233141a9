-- Scripts that the server keeps, for PostgreSQL.

-- Scripts by name; what is in them is in script_version.
CREATE TABLE script (
    -- Its id, made by a node.
    id BIGINT NOT NULL,
    -- Its tenant.
    namespace_id BIGINT NOT NULL REFERENCES namespace (id),
    -- Unique in its namespace.
    name VARCHAR(255) COLLATE "C" NOT NULL,
    -- What it is written in: the handler that runs it.
    language VARCHAR(32) NOT NULL,
    -- Its newest version, counted from 1.
    version BIGINT NOT NULL,
    -- When its first version was saved.
    created_at_ms BIGINT NOT NULL,
    -- When its newest version was saved.
    updated_at_ms BIGINT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT script_key UNIQUE (namespace_id, name)
);

-- The versions of scripts that are kept.
CREATE TABLE script_version (
    -- The script.
    script_id BIGINT NOT NULL,
    -- Counted from 1.
    version BIGINT NOT NULL,
    -- SHA-256 of its text, in hex.
    hash VARCHAR(64) NOT NULL,
    -- How many bytes its text has.
    size_bytes BIGINT NOT NULL,
    -- What its author said about it.
    note TEXT NOT NULL,
    -- A signature of it in base64; NULL for none.
    signature VARCHAR(255) COLLATE "C",
    -- Who saved it.
    author VARCHAR(255) COLLATE "C" NOT NULL,
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
    script_name VARCHAR(255) COLLATE "C" NOT NULL,
    -- Which version of it; 0 for the newest.
    version BIGINT NOT NULL,
    PRIMARY KEY (job_id)
);

CREATE INDEX script_use_name ON script_use (namespace_id, script_name, version);
