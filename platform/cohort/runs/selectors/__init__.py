"""What pages of runs read from the database. Nothing here writes."""
