"""Reward kinds that are rules of our own, one file each: parameters, score, SPEC.

By hand, because on the labelled cases a library alone does worse: what math-verify is given to read, and the share of a
language in a mixed text, where py3langid names one language for all of it.
"""
