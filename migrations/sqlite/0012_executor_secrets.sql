-- What executors prove their hellos with, for SQLite.

-- SHA-256 of the secret of the incarnation, in hex; NULL for an executor that has none.
ALTER TABLE executor ADD COLUMN secret_hash TEXT
    CHECK (length(secret_hash) <= 64);
