"""The language in which people search the list of runs: its syntax, its fields, and the rows that match."""
