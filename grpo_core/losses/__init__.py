"""Policy losses, per token: one file each, with its formula, settings, words and limits in SPEC.

Pure functions on tensors; torch is imported inside them alone, so that forms and records read a SPEC without it.
Nothing is masked or averaged here: `algo.masks` and `algo.aggregation` do that.
"""
