-- Runs that go to one executor by their caller's choice, for PostgreSQL.

-- Stable name of the only executor that may have the run; NULL where the job's router chooses.
ALTER TABLE run ADD COLUMN only_executor VARCHAR(255) COLLATE "C";
