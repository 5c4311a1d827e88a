"""This machine as the platform lists it: hardware, disk, sandbox, and its heartbeat."""
