-- Which jobs were saved or deleted of late, for those who watch, for SQLite. A claim does not write to job: edits alone pay.

CREATE INDEX job_saved ON job (updated_at_ms);
