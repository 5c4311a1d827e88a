"""The HTTP API that workers call."""
