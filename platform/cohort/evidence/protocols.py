"""What keeps two evaluations of one suite from being compared. Knows no Django."""

from collections.abc import Mapping
from typing import Any

SAME_ITEMS = "items_digest"
IGNORED = frozenset({"seed", "title", "category", "higher_is", "suite_version", "file_sha256", "problems_digest"})
"""Parts of a protocol that two comparable evaluations may differ in: the random numbers that answers were drawn with,
and names. That the items are the same is seen from `items_digest` and from the items."""
PROTOCOL_WORDS = {
    SAME_ITEMS: "other items",
    "problems": "another number of items",
    "template": "another prompt template",
    "chat": "another chat template",
    "reward_digest": "another reward",
    "scorer_digest": "another scorer",
    "scorer": "another kind of scorer",
    "success": "another success component",
    "temperature": "another temperature",
    "stop": "other stop strings",
    "max_completion_tokens": "another completion limit",
    "samples_per_problem": "another number of samples for each item",
}


def protocol_differences(base: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What keeps two evaluations from being compared, in words; empty where nothing does."""
    names = sorted(
        name for name in base.keys() | other.keys() if name not in IGNORED and base.get(name) != other.get(name)
    )
    return ", ".join(PROTOCOL_WORDS.get(name, f"another {name.replace('_', ' ')}") for name in names)
