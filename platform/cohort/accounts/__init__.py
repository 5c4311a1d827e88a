"""People, projects, memberships, and what signs in and out."""
