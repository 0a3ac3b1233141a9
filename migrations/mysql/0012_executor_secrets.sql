-- What executors prove their hellos with, for MySQL and MariaDB.
-- MySQL has no IF NOT EXISTS for a column, and this must be able to run again.

SET @has_secret_hash = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'executor' AND column_name = 'secret_hash');

-- SHA-256 of the secret of the incarnation, in hex; NULL for an executor that has none.
SET @add_secret_hash = IF(@has_secret_hash = 0, 'ALTER TABLE executor ADD COLUMN secret_hash VARCHAR(64)', 'DO 0');

PREPARE add_secret_hash FROM @add_secret_hash;

EXECUTE add_secret_hash;

DEALLOCATE PREPARE add_secret_hash;
