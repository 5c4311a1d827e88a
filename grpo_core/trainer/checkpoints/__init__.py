"""Checkpoints as training sees them: what one holds, when one is cut, which one to resume from. docs/checkpoints.md
tells a person; the folder as files is `grpo_core.files.checkpoint`'."""
