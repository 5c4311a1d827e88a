"""From rows to a checked config and a run in the queue."""
