"""Tests a verifier before a run learns from it: which right answers it refuses, which wrong ones it rewards.

Importing this package, or any module in it, loads no torch: the platform reads reports with it.
"""
