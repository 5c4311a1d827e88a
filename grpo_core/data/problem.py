"""What a policy is asked: one problem with its reference answer."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """A prompt and the answer that a reward compares completions with."""

    id: str
    """Unique in its file; `line-<n>` when the file gives none."""
    prompt: str
    answer: str
    meta: dict[str, Any] = field(default_factory=dict)
    """Whatever else the file said of the problem; no part of training looks at it."""
