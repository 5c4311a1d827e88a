"""One problem with its reference answer, and the split of a dataset into training and held-out problems."""

import hashlib
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from grpo_core.errors import DataError

Role = Literal["system", "user", "assistant"]
LETTERS = string.ascii_uppercase


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A prompt and the answer that a reward compares completions with."""

    id: str
    """Unique in its file; `line-<n>` when the file gives none."""
    prompt: str
    """The question: of a conversation the content of its last user turn."""
    answer: str
    """The reference answer; empty where the file gives none."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Further fields of the problem in its file; no part of training reads them."""
    messages: tuple[Message, ...] = ()
    """The whole conversation up to the turn that the policy is to write, the question last; empty where the file gives
    a text."""
    other_answers: tuple[str, ...] = ()
    """Further reference answers, each as right as `answer`."""

    @property
    def text(self) -> str:
        """All that the policy is given, as plain text: what two problems are compared by."""
        return "\n\n".join(message.content for message in self.messages) or self.prompt

    @property
    def fields(self) -> list[str]:
        """Names of what a reward can read of the problem."""
        return ["prompt", *(["answer"] if self.answer else []), *self.meta]


def with_options(prompt: str, options: Sequence[str]) -> str:
    """The prompt of a multiple choice."""
    listed = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, options, strict=False))
    return f"{prompt}\n\n{listed}\n\nAnswer with the letter of the right option."


class HasText(Protocol):
    """A row of a dataset."""

    @property
    def text(self) -> str:
        """What a policy is given."""


Row = TypeVar("Row", bound=HasText)


def holdout(
    problems: Sequence[Row],
    count: int,
    seed: int,
    *,
    noun: str = "problems",
    field: str = "eval.holdout",
    instead: str = "eval.path",
) -> tuple[list[Row], list[Row]]:
    """(train, held out), both in the order given; exactly `count` are held out.

    Which ones is decided by SHA-256 of seed and prompt (of a conversation, all its turns), so the choice does not
    depend on the file's order, and equal prompts (white space aside) stay on one side. Raises DataError when nothing
    would be left to train on, or when repeated prompts make exactly `count` impossible; in it `noun` is what rows are
    called, `field` the setting of `count`, `instead` the one of a file to give in its place.
    """
    if count >= len(problems):
        raise DataError(
            f"cannot hold out {count} of {len(problems)} {noun}: nothing would be left to train on; "
            f"lower {field} or give {instead}"
        )
    held = held_texts([" ".join(problem.text.split()) for problem in problems], count, seed)
    if len(held) < count:
        raise DataError(
            f"cannot hold out exactly {count} {noun}: repeated prompts must stay on one side; "
            f"the nearest below is {field} {len(held)}"
        )
    train = [problem for index, problem in enumerate(problems) if index not in held]
    return train, [problem for index, problem in enumerate(problems) if index in held]


def held_texts(texts: Sequence[str], count: int, seed: int) -> set[int]:
    """Indices of at most `count` texts to hold out, equal ones together, by SHA-256 of seed and text."""
    together: dict[str, list[int]] = {}
    for index, text in enumerate(texts):
        together.setdefault(text, []).append(index)
    held: set[int] = set()
    for text in sorted(together, key=lambda text: _rank(text, seed)):
        if len(held) + len(together[text]) <= count:
            held.update(together[text])
    return held


def _rank(prompt: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\n{prompt}".encode()).digest()
