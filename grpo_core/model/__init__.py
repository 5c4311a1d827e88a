"""The model: loading, layouts of rows, attention, head, adapters."""
