-- For PostgreSQL.
-- The jobs of an app by name: lists and alert rules of one app read them among those of all others, and before an app is deleted, the
-- database checks that no job refers to it.
CREATE INDEX IF NOT EXISTS job_app ON job (app_id, name);
