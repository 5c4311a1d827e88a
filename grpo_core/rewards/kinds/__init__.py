"""Reward kinds that are rules of our own, one file each: parameters, score, SPEC."""
