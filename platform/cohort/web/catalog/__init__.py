"""Pages of models, datasets, rewards and suites."""
