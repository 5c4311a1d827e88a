"""Calls to the platform's worker API, and what is sent with them: records and checkpoints."""
