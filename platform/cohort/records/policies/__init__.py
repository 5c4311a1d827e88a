"""The rules of a project that its records are judged by: versions, and what they give of a record."""
