"""Statistics of evaluations: intervals and paired comparisons on the same problems. Plain Python, no torch, no numpy.

Used alike by the trainer, the web pages and the offline check of a card, so that all three give the same numbers.
Scores lie in 0 to 1; differences are after − before. Formulas and sources: docs/statistics.md.
"""
