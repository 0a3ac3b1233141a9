-- Processes of executors on the host of a node, for PostgreSQL: a node that starts again sees which of them are gone.

-- The executor's process, if the node saw it on its own host: boot id, pid namespace, pid, and start in clock ticks since the boot.
ALTER TABLE executor_session ADD COLUMN process TEXT;
