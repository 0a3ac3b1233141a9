-- Executors that have said goodbye, for PostgreSQL: nobody has to wait for them.

-- 1 where the executor has ended in order: it has nothing in hand and takes nothing more.
ALTER TABLE executor_session ADD COLUMN has_left SMALLINT NOT NULL DEFAULT 0;
