-- The open runs of a node by job, for MySQL and MariaDB: adoption takes jobs over one after the other, and a due run's job is looked
-- up here while the runs of earlier leases are still taken over. The status comes first, so that what has ended is not walked through.
-- MySQL has no IF NOT EXISTS for an index or a column, and this must be able to run again.

SET @has_index = (SELECT COUNT(*) FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'run' AND index_name = 'run_open_job');

SET @add_index = IF(@has_index = 0, 'CREATE INDEX run_open_job ON run (node_id, status, job_id, node_epoch)', 'DO 0');

PREPARE add_index FROM @add_index;

EXECUTE add_index;

DEALLOCATE PREPARE add_index;

SET @has_ended_at = (SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'node' AND column_name = 'ended_at_ms');

-- ended_at_ms: The latest end of a lease of this node that was fenced: what was due before it may have been sent. Where the database's
-- clock stepped back, an earlier lease ended later than the last one.
SET @add_ended_at = IF(@has_ended_at = 0, 'ALTER TABLE node ADD COLUMN ended_at_ms BIGINT NOT NULL DEFAULT 0', 'DO 0');

PREPARE add_ended_at FROM @add_ended_at;

EXECUTE add_ended_at;

DEALLOCATE PREPARE add_ended_at;
