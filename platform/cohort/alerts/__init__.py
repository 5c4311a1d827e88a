"""Alerts of runs: rules that open them, the desk that people answer them at, and channels that carry them outside."""
