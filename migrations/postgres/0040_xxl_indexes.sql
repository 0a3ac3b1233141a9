-- For PostgreSQL.
-- Two indexes held every attempt and its state, so that each change of the state wrote both anew. One holds what is not done, and the
-- other what is: an attempt whose end is reported stays where it is.
DROP INDEX xxl_run_executor;

CREATE INDEX xxl_run_unsettled ON xxl_run (executor_id, log_id) WHERE state < 2;

DROP INDEX xxl_run_over;

CREATE INDEX xxl_run_settled ON xxl_run (reported_at_ms) WHERE state = 2;
