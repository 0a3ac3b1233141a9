-- What keeps the ledger in bounds and says what failed, for MySQL and MariaDB.

-- Where failed runs of a namespace are told. A table of its own: most namespaces have none.
CREATE TABLE IF NOT EXISTS failure_webhook (
    -- The tenant.
    namespace_id BIGINT NOT NULL,
    -- Where it is sent, http or https.
    url TEXT NOT NULL,
    -- What messages are signed with, as it was shown when it was made: whsec_ and the key in base64.
    secret VARCHAR(255) NOT NULL,
    -- When it was made.
    created_at_ms BIGINT NOT NULL,
    -- When its URL was last set.
    updated_at_ms BIGINT NOT NULL,
    PRIMARY KEY (namespace_id),
    FOREIGN KEY (namespace_id) REFERENCES namespace (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Chores that one node of the cluster does per period.
CREATE TABLE IF NOT EXISTS housekeeping_pass (
    -- The chore.
    task VARCHAR(255) NOT NULL,
    -- When a node last began it.
    last_at_ms BIGINT NOT NULL,
    PRIMARY KEY (task)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
