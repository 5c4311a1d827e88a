"""Results of other evaluation tools, read from the files they wrote. Nothing here is executed or trusted: the
files come from anywhere, are bounded before they are parsed, and what is invalid in them is refused by name."""
