"""Evaluation: suites, items, scorers, tasks and their report. Loads no torch."""
