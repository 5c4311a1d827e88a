"""A run's settings, one type for form, YAML and command line; what goes together, what means nothing, and the
presets."""
