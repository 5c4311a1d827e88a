"""A process and its machine: clock, signals, threads, progress, energy, watchdog. Loads no torch."""
