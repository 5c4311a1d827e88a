"""Records of workers, from a batch of bytes to rows."""
