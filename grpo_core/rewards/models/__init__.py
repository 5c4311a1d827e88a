"""Reward kinds that are trained classifiers: of a whole text, and of each step."""
