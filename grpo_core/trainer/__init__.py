"""The training loop and what it holds: inputs, sampling, groups, metrics, records, checkpoints."""
