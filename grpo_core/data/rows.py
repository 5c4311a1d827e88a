"""A row's fields by the role that each has in a problem."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from grpo_core.data.lines import Line, names_shown
from grpo_core.data.problem import Message, Problem

ANSWERS = ("answer", "final_answer", "ground_truth", "reference_answer", "expected_answer")
"""Names that public sets give a reference answer."""

Columns = Mapping[str, str]
"""{role: field or dotted path}, of the roles that the file has; "" where it has none by the config."""


class Row:
    """One row, its fields by their role."""

    def __init__(self, line: Line, fields: dict[str, Any], columns: Columns) -> None:
        self.line = line
        self.fields = fields
        self.columns = columns

    def has(self, role: str) -> bool:
        return bool(self.columns.get(role))

    def value(self, role: str) -> Any:
        return self.line.value(self.fields, self.columns[role])

    def text(self, role: str) -> str:
        """Raises DataError where it is empty."""
        name = self.columns[role]
        text = self.line.checked_text(self.value(role), name)
        if not text.strip():
            self.line.fail(f"{name!r} is empty; expected the problem's text")
        return text

    def references(self) -> tuple[str, ...]:
        """The reference answers; none where the layout has no answer column."""
        if not self.has("answer"):
            self._refuse_unread_answer()
            return ()
        name, value = self.columns["answer"], self.value("answer")
        if isinstance(value, dict):
            self.line.fail(
                f"{name!r} is an object with {names_shown(value)}; name the field in it, such as data.columns.answer: "
                f"{name}.{next(iter(value), '…')}"
            )
        given = value if isinstance(value, list) else [value]
        texts = [self.line.checked_text(text, name, numbers=True) for text in given]
        if not texts or not all(text.strip() for text in texts):
            self.line.fail(
                f"{name!r} is empty, and an empty reference would reward an empty answer; give it, or read "
                "the file as prompt_only where no reward compares with it"
            )
        return tuple(dict.fromkeys(texts))

    def with_known_answer(self) -> "Row":
        """With the answer column that its fields have by name; itself where they have none."""
        there = [name for name in ANSWERS if name in self.fields]
        if len(there) > 1:
            self.line.fail(f"has {' and '.join(map(repr, there))}; name the answer with data.columns.answer")
        return Row(self.line, self.fields, {**self.columns, "answer": there[0] if there else ""})

    def problem(
        self,
        prompt: str,
        references: tuple[str, ...],
        *,
        messages: tuple[Message, ...] = (),
        meta: Mapping[str, Any] = MappingProxyType({}),
    ) -> Problem:
        """With all fields that no role took verbatim, and `meta`."""
        if system := self.system():
            if messages and messages[0].role == "system":
                self.line.fail(f"has a system message among its messages and one in {self.columns['system']!r}")
            messages = (Message("system", system), *(messages or (Message("user", prompt),)))
        taken = set(self.columns.values())
        rest = {name: value for name, value in self.fields.items() if name not in taken}
        return Problem(
            id=self.line.id(self.fields, self.columns["id"]),
            prompt=prompt,
            answer=references[0] if references else "",
            meta={**rest, **meta},
            messages=messages,
            other_answers=references[1:],
        )

    def system(self) -> str:
        """The system message, "" where the row has none."""
        name = self.columns["system"]
        if not name or (name == "system" and self.fields.get(name) is None):
            return ""
        return self.line.text(self.fields, name)

    def _refuse_unread_answer(self) -> None:
        if self.columns.get("answer") is None and (name := next((name for name in ANSWERS if name in self.fields), "")):
            self.line.fail(f"has {name!r}, which earlier rows have not; every row has a reference answer, or none has")
