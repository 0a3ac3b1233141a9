-- The open runs of a namespace, for PostgreSQL: a list of what runs or waits is read without walking through what has ended.

CREATE INDEX IF NOT EXISTS run_open_list ON run (namespace_id, id)
    WHERE status IN ('pending', 'waiting', 'running');
