"""What two records differ in: of two runs, or two ends or versions of one. Pure functions, and their page."""
