-- Which node fenced a lease, for PostgreSQL.

-- The node that fenced the last lease of this one and so got its limits; 0 if no node did. Counts only while the lease is fenced.
ALTER TABLE node ADD COLUMN fenced_by BIGINT NOT NULL DEFAULT 0;
