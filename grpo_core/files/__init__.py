"""What a run leaves on disk: its folder, the spool, checkpoints as files, and which weight files are safe to read."""
