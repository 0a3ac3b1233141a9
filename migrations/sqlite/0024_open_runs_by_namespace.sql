-- The open runs of a namespace, for SQLite: a list of what runs or waits is read without walking through what has ended.

CREATE INDEX run_open_list ON run (namespace_id, id)
    WHERE status IN ('pending', 'waiting', 'running');
