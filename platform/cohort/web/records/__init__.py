"""Pages of records, and of the check of a card."""
