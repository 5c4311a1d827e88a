"""The command `grpo`: one file a subcommand. Parses first and imports what is heavy after."""
