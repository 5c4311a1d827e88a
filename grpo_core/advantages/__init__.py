"""From rewards to advantages: how much better a completion did than what it is compared with.

One estimator per file, with its formula, words and limits in SPEC; docs/losses/ has each with its source. torch is
imported inside functions alone, so that forms and records read a SPEC without it. `compare.py` holds what estimators
share: means and spreads of groups, and the rule for equal rewards.
"""
