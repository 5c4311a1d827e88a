"""The first page of a project: what runs, waits, needs somebody, and is new."""
