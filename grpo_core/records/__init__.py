"""Everything a run writes down, and the salted hashes and monitors that rest on it. Loads no torch."""
