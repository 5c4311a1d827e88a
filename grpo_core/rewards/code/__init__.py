"""The reward kind `code`: a completion's program runs against the problem's tests, in the sandbox."""
