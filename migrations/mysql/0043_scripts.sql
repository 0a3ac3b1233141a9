-- Scripts that the server keeps, for MySQL and MariaDB.

-- Scripts by name; what is in them is in script_version.
CREATE TABLE IF NOT EXISTS script (
    -- Its id, made by a node.
    id BIGINT NOT NULL,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- Unique in its namespace.
    name VARCHAR(255) NOT NULL,
    -- What it is written in: the handler that runs it.
    language VARCHAR(32) NOT NULL,
    -- Its newest version, counted from 1.
    version BIGINT NOT NULL,
    -- When its first version was saved.
    created_at_ms BIGINT NOT NULL,
    -- When its newest version was saved.
    updated_at_ms BIGINT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT script_key UNIQUE (namespace_id, name),
    FOREIGN KEY (namespace_id) REFERENCES namespace (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The versions of scripts that are kept.
CREATE TABLE IF NOT EXISTS script_version (
    -- The script.
    script_id BIGINT NOT NULL,
    -- Counted from 1.
    version BIGINT NOT NULL,
    -- SHA-256 of its text, in hex.
    hash VARCHAR(64) NOT NULL,
    -- How many bytes its text has.
    size_bytes BIGINT NOT NULL,
    -- What its author said about it.
    note MEDIUMTEXT NOT NULL,
    -- A signature of it in base64; NULL for none.
    signature VARCHAR(255),
    -- Who saved it.
    author VARCHAR(255) NOT NULL,
    -- When it was saved.
    created_at_ms BIGINT NOT NULL,
    -- Its text.
    source MEDIUMTEXT NOT NULL,
    PRIMARY KEY (script_id, version)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Which script the newest definition of a job names.
CREATE TABLE IF NOT EXISTS script_use (
    -- The job.
    job_id BIGINT NOT NULL,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- The script.
    script_name VARCHAR(255) NOT NULL,
    -- Which version of it; 0 for the newest.
    version BIGINT NOT NULL,
    PRIMARY KEY (job_id),
    KEY script_use_name (namespace_id, script_name, version)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
