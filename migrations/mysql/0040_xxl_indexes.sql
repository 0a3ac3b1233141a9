-- For MySQL and MariaDB, which have no partial indexes: the indexes of 0033 stay.
DO 0;
