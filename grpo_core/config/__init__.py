"""A run's settings, one type for form, YAML and command line; which conflict, which have no effect, and the
presets."""
