"""What runs are made from: base models, datasets, rewards, suites."""
