-- For SQLite.
-- The node that an attempt was sent from reads its log; the rows that exist have none, and are read by another.
ALTER TABLE xxl_run ADD COLUMN node_id BIGINT NOT NULL DEFAULT 0;
