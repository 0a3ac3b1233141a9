-- Traces in which runs were asked for, for PostgreSQL.

-- The trace of whoever asked for a run: the run, its shards and what follows from it go on in it.
CREATE TABLE run_trace (
    -- The run that was asked for.
    run_id BIGINT NOT NULL,
    -- The span that asked for it, as W3C Trace Context writes it.
    traceparent VARCHAR(55) COLLATE "C" NOT NULL,
    PRIMARY KEY (run_id)
);
