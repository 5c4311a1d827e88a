"""What a SPEC is made of, and how the SPECs of a folder are collected."""
