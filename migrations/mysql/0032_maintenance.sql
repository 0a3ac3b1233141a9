-- Maintenance windows, and what they hold back, for MySQL and MariaDB.
-- MySQL has no IF NOT EXISTS for a column, and this must be able to run again.

-- A new reason of runs. A longer CHECK would read every row of the ledger, so the column has none from now on: the program refuses
-- other words. In MariaDB the CHECK goes with this statement, in MySQL by its name.
ALTER TABLE run MODIFY COLUMN reason VARCHAR(16);

SET @check_name = (SELECT MAX(checks.constraint_name) FROM information_schema.check_constraints AS checks
    JOIN information_schema.table_constraints AS owners ON owners.constraint_schema = checks.constraint_schema
    AND owners.constraint_name = checks.constraint_name
    WHERE owners.table_schema = DATABASE() AND owners.table_name = 'run' AND checks.check_clause LIKE '%not_received%');

SET @drop_check = IF(@check_name IS NULL, 'DO 0', CONCAT('ALTER TABLE run DROP CONSTRAINT ', @check_name));

PREPARE drop_check FROM @drop_check;

EXECUTE drop_check;

DEALLOCATE PREPARE drop_check;

-- A time in which the jobs of a namespace or an app do not fire.
CREATE TABLE IF NOT EXISTS maintenance (
    -- Made by the server.
    id BIGINT NOT NULL,
    -- The tenant.
    namespace_id BIGINT NOT NULL,
    -- The app; NULL for all jobs of the namespace.
    app_id BIGINT,
    -- Its first instant.
    starts_at_ms BIGINT NOT NULL,
    -- The first instant after it.
    ends_at_ms BIGINT NOT NULL,
    -- What happens to the fires inside.
    fires VARCHAR(8) NOT NULL
        CHECK (fires IN ('skip', 'hold')),
    -- Why.
    reason VARCHAR(1000) NOT NULL,
    -- Who planned it.
    author VARCHAR(255) NOT NULL,
    -- When.
    created_at_ms BIGINT NOT NULL,
    PRIMARY KEY (id),
    KEY maintenance_end (ends_at_ms),
    KEY maintenance_list (namespace_id, ends_at_ms),
    FOREIGN KEY (namespace_id) REFERENCES namespace (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

SET @has_column = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'job_due' AND column_name = 'held_from_ms');

-- held_from_ms: the first fire that a maintenance window holds back: what is planned from here up to next_fire_at_ms has no row yet.
-- NULL where nothing is held back.
SET @add_column = IF(@has_column = 0, 'ALTER TABLE job_due ADD COLUMN held_from_ms BIGINT', 'DO 0');

PREPARE add_column FROM @add_column;

EXECUTE add_column;

DEALLOCATE PREPARE add_column;
