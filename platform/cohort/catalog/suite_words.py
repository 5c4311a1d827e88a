"""What people call the categories of suites and their scorers."""

from typing import get_args

from grpo_core.config.evaluation import Category, ScorerKind

CATEGORIES: dict[str, str] = {
    "performance": "performance",
    "hallucination": "hallucination",
    "refusal_calibration": "refusal calibration",
    "jailbreak_robustness": "jailbreak robustness",
    "harmful_capability": "harmful capability",
    "multilingual": "multilingual",
    "tool_use": "tool use",
    "format": "format",
}
assert set(CATEGORIES) == set(get_args(Category))

SAFETY = frozenset({"hallucination", "refusal_calibration", "jailbreak_robustness", "harmful_capability"})
"""Tested together: their p values are adjusted for there being several."""

SCORERS: dict[str, str] = {
    "exact": "the answer is the target",
    "number": "both are the same number",
    "choice": "the option's letter or text",
    "refusal": "words of refusal, by string match: it over- and undercounts",
    "function_call": "the calls written out are those wanted; nothing is run",
    "format": "a pattern, or the shape of a JSON value",
    "contains": "the target stands in the completion",
}
assert set(SCORERS) == set(get_args(ScorerKind))

HARM = {
    "better": "harm is a fall of the score",
    "worse": "harm is a rise of the score",
    "neutral": "neither way counts as harm",
}
