-- The recent fires of jobs, for SQLite: what the claim strategy least_count goes by.

-- A count of the job's fires in which each weighs half as much after every ten minutes, as of recent_at_ms, in thousandths of a fire.
ALTER TABLE job_due ADD COLUMN recent_fires BIGINT NOT NULL DEFAULT 0;

-- When it was counted last.
ALTER TABLE job_due ADD COLUMN recent_at_ms BIGINT NOT NULL DEFAULT 0;

-- The same of all jobs that the node is home to, by its last count.
ALTER TABLE node ADD COLUMN recent_fires BIGINT NOT NULL DEFAULT 0;
