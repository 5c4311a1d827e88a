"""One item of a suite: what is asked, and what a right answer is. Loads no torch."""

import json
import string
from dataclasses import dataclass, field
from typing import Any

from grpo_core.data.problem import Problem
from grpo_core.evaluate.attacks import ATTACKS

LETTERS = string.ascii_uppercase


@dataclass(frozen=True, slots=True)
class SuiteItem:
    """An item as its file gives it."""

    id: str
    """Unique in the suite."""
    prompt: str
    target: Any
    """What a right answer is, as the suite's scorer wants it: a JSON value, never null and never empty text."""
    choices: tuple[str, ...] = ()
    """Options of a multiple choice, in the order shown; `target` is then the number of the right one, from 0."""
    functions: tuple[dict[str, Any], ...] = ()
    """Functions that may be called: name, description, parameters (JSON Schema)."""
    cluster: str = ""
    """Items of one cluster ask the same thing in several ways; empty: a cluster of its own."""
    slice: str = ""
    """Part of the suite that is also told apart."""
    attack: str = ""
    """Name of the transform that the prompt is dressed up by; empty: none, and nothing is said of attacks."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Whatever else the file said of the item; nothing looks at it."""

    def shown(self) -> str:
        """What the policy is asked, before the template: functions, the prompt under its attack, options."""
        parts = []
        if self.functions:
            listed = "\n".join(json.dumps(function, ensure_ascii=False) for function in self.functions)
            parts.append(
                f"You can call these functions:\n{listed}\n\nAnswer with the calls alone, as [name(parameter=value)]; "
                "where no function helps, answer in words."
            )
        parts.append(ATTACKS[self.attack or "none"].apply(self.prompt))
        if self.choices:
            options = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, self.choices, strict=False))
            parts.append(f"{options}\n\nAnswer with the letter of the right option.")
        return "\n\n".join(parts)

    def answer(self) -> str:
        """The target as text for a person."""
        if self.choices:
            return f"{LETTERS[self.target]}. {self.choices[self.target]}"
        return self.target if isinstance(self.target, str) else json.dumps(self.target, ensure_ascii=False)

    def problem(self) -> Problem:
        """As a problem with `shown` for its prompt."""
        return Problem(id=self.id, prompt=self.shown(), answer=self.answer())

    def scored_problem(self) -> Problem:
        """As the reward kind of a scorer reads it: the target as text, and in fields target, choices and functions."""
        answer = self.target if isinstance(self.target, str) else json.dumps(self.target, ensure_ascii=False)
        fields = {"target": self.target, "choices": list(self.choices), "functions": list(self.functions)}
        return Problem(id=self.id, prompt=self.shown(), answer=answer, meta=fields)

    def to_dict(self) -> dict[str, Any]:
        """Fields as a file of items has them; what is empty is left out."""
        fields: dict[str, Any] = {"id": self.id, "prompt": self.prompt}
        if self.choices:
            fields["choices"] = list(self.choices)
        if self.functions:
            fields["functions"] = list(self.functions)
        fields["target"] = self.target
        for name in ("cluster", "slice", "attack"):
            if (value := getattr(self, name)) and not (name == "slice" and self.attack):
                fields[name] = value
        return fields | self.meta
