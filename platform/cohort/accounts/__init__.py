"""People, projects, memberships, and the log of sign-ins."""
