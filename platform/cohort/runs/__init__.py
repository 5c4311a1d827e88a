"""Runs and attempts: states, leases, queue, retries."""
