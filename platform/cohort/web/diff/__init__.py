"""Pages that compare two records."""
