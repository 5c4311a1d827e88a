"""The work of the fine-tuning comparison, for both sides: rows of data, and the ways that they are learned from."""

from dataclasses import dataclass, field
from typing import Any

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ 'a:' }}{% generation %}{{ m.content + '<|end|>' }}"
    "{% endgeneration %}{{ '\\n' }}{% else %}{{ m.role[0] + ':' + m.content + '<|end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
)
"""Marks for TRL what the assistant writes: content and end, not the line break after it."""
PROMPTS: list[dict[str, Any]] = [
    {"prompt": f"what is {a} + {b}?", "completion": f" {a} and {b} make {a + b}" + ", so" * (a % 4)}
    for a, b in ((1, 2), (30, 4), (5, 600), (7, 8), (9, 10), (110, 12), (13, 1400), (15, 16))
]


def _turns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    turns = [
        {"role": role, "content": row[name]}
        for row in rows
        for role, name in (("user", "prompt"), ("assistant", "completion"))
    ]
    return {"messages": turns}


TURNS = [_turns(PROMPTS[:3]), _turns(PROMPTS[3:4]), _turns(PROMPTS[4:6]), _turns(PROMPTS[6:])]


@dataclass(frozen=True)
class Case:
    """One line of the comparison."""

    name: str
    turns: bool
    """Whether conversations of several turns are learned from, else prompts with their completions."""
    micro_batches: int = 1
    layout: str = "right"
    """Ours."""
    trl: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return TURNS if self.turns else PROMPTS


_FREE: dict[str, Any] = {"padding_free": True, "max_length": None}
_PACKED: dict[str, Any] = {"packing": True, "packing_strategy": "bfd", "max_length": 256}
CASES = [
    Case("prompt and completion, padded", False),
    Case("prompt and completion, two micro-batches", False, micro_batches=2),
    Case("prompt and completion, without padding", False, layout="packed", trl=_FREE),
    Case("prompt and completion, packed", False, layout="packed", trl=_PACKED),
    Case("prompts shared", False, layout="shared"),
    Case("turns, padded", True),
    Case("turns, two micro-batches", True, micro_batches=2),
    Case("turns, without padding", True, layout="packed", trl=_FREE),
]
