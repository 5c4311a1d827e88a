"""Pages of pipelines: the list, a new one, the picture of stages, and a stage with its fields and runs."""
