"""Sampled groups and what reviewers judge."""
