"""The `cohort` command."""
