"""Completions that other trainers wrote, read from their files row by row: TRL, verl, Inspect."""
