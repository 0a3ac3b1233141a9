-- Traces in which runs were asked for, for SQLite.

-- The trace of whoever asked for a run: the run, its shards and what follows from it go on in it.
CREATE TABLE run_trace (
    -- The run that was asked for.
    run_id BIGINT NOT NULL,
    -- The span that asked for it, as W3C Trace Context writes it.
    traceparent TEXT NOT NULL
        CHECK (length(traceparent) <= 55),
    PRIMARY KEY (run_id)
);
