"""Suites: versioned items, and what they are judged by. Loads no torch."""
