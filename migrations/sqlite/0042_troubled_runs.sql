-- For SQLite, which takes run_trouble for searches only as long as it is narrow: it stays as it is.
SELECT 1;
