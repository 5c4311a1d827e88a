"""The audit log: entries, its Merkle tree, signed heads, witnesses."""
