-- What charts read beside run_stat, for PostgreSQL: counts with distributions per namespace, app and job, and which jobs fail now.

-- What became of the runs of one owner that were planned in one bucket of time.
CREATE TABLE stat_point (
    -- The namespace, app or job.
    owner_id BIGINT NOT NULL,
    -- Which of them it is.
    kind VARCHAR(16) COLLATE "C" NOT NULL
        CHECK (kind IN ('namespace', 'app', 'job')),
    -- The length of the bucket.
    step_ms BIGINT NOT NULL,
    -- When the bucket begins.
    at_ms BIGINT NOT NULL,
    -- How many runs ended so; a row of the ledger that stands for a span of fires counts as all of them. Shards don't count, their whole does.
    succeeded_count BIGINT NOT NULL,
    failed_count BIGINT NOT NULL,
    timed_out_count BIGINT NOT NULL,
    cancelled_count BIGINT NOT NULL,
    unknown_count BIGINT NOT NULL,
    skipped_count BIGINT NOT NULL,
    -- How long the last attempts took: counts by logarithmic bucket, "bucket:count" with spaces between them.
    durations TEXT NOT NULL,
    -- How much later than planned the handlers of first attempts began, in the same form.
    lateness TEXT NOT NULL,
    PRIMARY KEY (owner_id, kind, step_ms, at_ms)
);

CREATE INDEX stat_point_age ON stat_point (kind, step_ms, at_ms);

-- How a job has ended of late: one row for each job that ever succeeded or failed.
CREATE TABLE job_pulse (
    -- The job.
    job_id BIGINT NOT NULL PRIMARY KEY,
    -- Its tenant.
    namespace_id BIGINT NOT NULL,
    -- The app of its newest counted run.
    app_id BIGINT NOT NULL,
    -- The planned instant of the newest run that succeeded.
    succeeded_at_ms BIGINT,
    -- The planned instant of the newest run that failed, timed out, or whose end is unknown.
    failed_at_ms BIGINT,
    -- The planned instant of the first of those since the last success; NULL while the newest run succeeded.
    failing_since_ms BIGINT,
    -- How many there are since then.
    streak_count BIGINT NOT NULL
);

CREATE INDEX job_pulse_failing ON job_pulse (namespace_id, streak_count)
    WHERE streak_count > 0;

-- What was counted before there were these tables: without distributions, which were not kept.
INSERT INTO stat_point (owner_id, kind, step_ms, at_ms, succeeded_count, failed_count, timed_out_count, cancelled_count,
    unknown_count, skipped_count, durations, lateness)
SELECT run_stat.job_id, 'job', 3600000, run_stat.hour_at_ms,
    SUM(CASE WHEN run_stat.status = 'succeeded' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'failed' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'timed_out' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'cancelled' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'unknown' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'skipped' THEN run_stat.run_count ELSE 0 END), '', ''
FROM run_stat GROUP BY run_stat.job_id, run_stat.hour_at_ms;

INSERT INTO stat_point (owner_id, kind, step_ms, at_ms, succeeded_count, failed_count, timed_out_count, cancelled_count,
    unknown_count, skipped_count, durations, lateness)
SELECT run_stat.job_id, 'job', 86400000, run_stat.hour_at_ms - run_stat.hour_at_ms % 86400000,
    SUM(CASE WHEN run_stat.status = 'succeeded' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'failed' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'timed_out' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'cancelled' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'unknown' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'skipped' THEN run_stat.run_count ELSE 0 END), '', ''
FROM run_stat GROUP BY run_stat.job_id, run_stat.hour_at_ms - run_stat.hour_at_ms % 86400000;

INSERT INTO stat_point (owner_id, kind, step_ms, at_ms, succeeded_count, failed_count, timed_out_count, cancelled_count,
    unknown_count, skipped_count, durations, lateness)
SELECT job.app_id, 'app', 3600000, run_stat.hour_at_ms,
    SUM(CASE WHEN run_stat.status = 'succeeded' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'failed' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'timed_out' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'cancelled' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'unknown' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'skipped' THEN run_stat.run_count ELSE 0 END), '', ''
FROM run_stat JOIN job ON job.id = run_stat.job_id GROUP BY job.app_id, run_stat.hour_at_ms;

INSERT INTO stat_point (owner_id, kind, step_ms, at_ms, succeeded_count, failed_count, timed_out_count, cancelled_count,
    unknown_count, skipped_count, durations, lateness)
SELECT job.namespace_id, 'namespace', 3600000, run_stat.hour_at_ms,
    SUM(CASE WHEN run_stat.status = 'succeeded' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'failed' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'timed_out' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'cancelled' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'unknown' THEN run_stat.run_count ELSE 0 END),
    SUM(CASE WHEN run_stat.status = 'skipped' THEN run_stat.run_count ELSE 0 END), '', ''
FROM run_stat JOIN job ON job.id = run_stat.job_id GROUP BY job.namespace_id, run_stat.hour_at_ms;
