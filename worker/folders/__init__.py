"""Folders of attempts and jobs: inputs, checkpoints, and what trainer and job leave there."""
