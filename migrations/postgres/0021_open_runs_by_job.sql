-- The open runs of a node by job: adoption takes jobs over one after the other, and a due run's job is looked up here
-- while the runs of earlier leases are still taken over.

CREATE INDEX run_open_job ON run (node_id, status, job_id, node_epoch)
    WHERE status IN ('pending', 'waiting', 'running');

-- The latest end of a lease of this node that was fenced: what was due before it may have been sent. Where the database's clock stepped
-- back, an earlier lease ended later than the last one.
ALTER TABLE node ADD COLUMN ended_at_ms BIGINT NOT NULL DEFAULT 0;
