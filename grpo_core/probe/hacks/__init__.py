"""The hacks of a probe: programs that try to be paid without solving the problem."""
