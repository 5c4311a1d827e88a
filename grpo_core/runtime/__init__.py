"""A process and its machine: clock, signals, threads, progress, energy, watchdog, HTTP. Loads no torch."""
