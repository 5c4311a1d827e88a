"""What people state about a run."""
