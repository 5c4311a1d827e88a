"""Pipelines: graphs of stages, each a run that begins from what earlier stages gave."""
