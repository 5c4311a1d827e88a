"""Pipelines: a graph of runs in which a stage's weights, reward model or dataset is what a later stage begins from.
Loads no torch: stages are `grpo train` in processes of their own."""
