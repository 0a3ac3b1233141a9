-- What came of the last ticks of a node's loops, for PostgreSQL.

-- JSON, one entry for each loop; NULL from a server that did not say it.
ALTER TABLE node ADD COLUMN loops TEXT;
