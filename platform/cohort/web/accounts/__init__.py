"""Pages of projects, members, passwords."""
