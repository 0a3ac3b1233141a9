-- Which executors succeeded one, without reading all of them, for SQLite.

CREATE INDEX IF NOT EXISTS executor_predecessor ON executor (predecessor_id);
