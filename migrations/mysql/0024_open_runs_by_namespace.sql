-- The open runs of a namespace, for MySQL and MariaDB: they have no partial index, and run_trouble, which begins with the namespace
-- and the status, serves the lists of open runs too.

DO 0;
