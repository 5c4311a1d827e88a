"""Pages of sampled groups."""
