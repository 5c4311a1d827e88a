"""Pages that try, probe and estimate before a launch."""
