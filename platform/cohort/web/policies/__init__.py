"""Pages of a project's policy: its versions, and what it gives of a record."""
