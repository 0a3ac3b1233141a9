-- The sessions of a server whose locks nothing else ends, for SQLite, where there are none.

-- The sessions that this server has in the database, where that has no time limit of its own for an idle transaction: once the lease is over, another server ends them. Numbers with commas between them.
ALTER TABLE node ADD COLUMN connection_ids TEXT;
