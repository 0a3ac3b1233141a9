-- Which executors succeeded one, without reading all of them, for PostgreSQL.

CREATE INDEX IF NOT EXISTS executor_predecessor ON executor (predecessor_id);
