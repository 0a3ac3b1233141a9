-- Why a run stands where it stands, with parameters, for SQLite.

-- The parameters of the reason, and what an open run waits for, as a small JSON object; NULL where there are none.
ALTER TABLE run ADD COLUMN detail TEXT;

-- The reason of the verdict when the run ends by the request to cancel it; NULL for a request by a user or a program.
ALTER TABLE run ADD COLUMN cancel_reason TEXT;

-- The parameters of the reason.
ALTER TABLE run_attempt ADD COLUMN detail TEXT;
