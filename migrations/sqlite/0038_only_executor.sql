-- Runs that go to one executor by their caller's choice, for SQLite.

-- Stable name of the only executor that may have the run; NULL where the job's router chooses.
ALTER TABLE run ADD COLUMN only_executor TEXT
    CHECK (length(only_executor) <= 255);
