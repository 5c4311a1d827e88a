"""Pages of redaction and retention."""
