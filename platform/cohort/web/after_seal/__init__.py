"""Pages of what happens to a record after its seal: sign-offs, entries, public links."""
