"""Pages of the audit log."""
