"""The run form."""
