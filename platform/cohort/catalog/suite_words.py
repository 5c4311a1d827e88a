"""What people call the categories of suites and their scorers."""

from typing import get_args

from grpo_core.config.evaluation import Category
from grpo_core.evaluate.scorer import SCORERS as SUITE_SCORERS
from grpo_core.rewards import KINDS

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

SCORERS: dict[str, str] = {name: KINDS[kind].summary for name, (kind, _) in SUITE_SCORERS.items()}

HARM = {
    "better": "harm is a fall of the score",
    "worse": "harm is a rise of the score",
    "neutral": "neither way counts as harm",
}
