"""Checkpoints as training sees them: what one holds, when one is cut, which one to resume from. docs/checkpoints.md
describes them; `grpo_core.files.checkpoint` has the folder as files."""
