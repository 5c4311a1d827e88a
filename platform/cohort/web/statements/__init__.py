"""The page of statements."""
