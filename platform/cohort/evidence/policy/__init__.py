"""Rules that a record is judged by: their file, the closed set of their kinds, and the answer. Knows no Django: a
platform at the seal and a reader's own machine judge by the same code."""
