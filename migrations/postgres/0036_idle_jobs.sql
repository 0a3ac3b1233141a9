-- For PostgreSQL.
-- Jobs that will never fire by themselves: pages list them, beside thousands that will.
CREATE INDEX job_due_idle ON job_due (job_id) WHERE next_fire_at_ms IS NULL AND is_over = 1;
