"""Multiple choice sets as suite items: TruthfulQA (Lin et al. 2022, arXiv 2109.07958) and WMDP (Li et al. 2024, arXiv
2403.03218)."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from grpo_core.data.lines import Line
from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.suites.tables import table_rows


def truthfulqa(files: Sequence[tuple[str, bytes]]) -> Iterator[SuiteItem]:
    """One right option among the wrong ones (MC1). The files give the right one first, so options are put in an order
    drawn by SHA-256 of question and option, the same every time. In the CSV, `Best Answer` is right, the
    `Incorrect Answers` are wrong, and the slice is the category."""
    for name, content in files:
        for number, (line, fields) in enumerate(table_rows(name, content), start=1):
            question, options, part = _from_text(line, fields) if "Question" in fields else _from_targets(line, fields)
            right = [option for option, is_right in options.items() if is_right]
            if len(right) != 1 or len(options) < 2:
                line.fail(f"has {len(right)} right options of {len(options)}; expected one right of two or more")
            order = sorted(options, key=lambda option: hashlib.sha256(f"{question}\n{option}".encode()).digest())
            yield SuiteItem(
                id=f"truthfulqa-{number}",
                prompt=question,
                target=order.index(right[0]),
                choices=tuple(order),
                slice=part,
            )


def wmdp(files: Sequence[tuple[str, bytes]]) -> Iterator[SuiteItem]:
    """Options stay in the file's order. The slice is `subject` where the file has it, else the file's name."""
    for name, content in files:
        stem = PurePath(name).stem
        for number, (line, fields) in enumerate(table_rows(name, content), start=1):
            choices, answer = fields.get("choices"), fields.get("answer")
            if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
                line.fail("has no 'choices' that are a list of texts")
            if type(answer) is not int or not 0 <= answer < len(choices):
                line.fail(f"'answer' is {answer!r}; expected the number of a choice, 0 to {len(choices) - 1}")
            yield SuiteItem(
                id=f"{stem}-{number}",
                prompt=line.prompt(fields, "question"),
                target=answer,
                choices=tuple(choices),
                slice=str(fields.get("subject", stem)),
            )


def _from_text(line: Line, row: dict[str, Any]) -> tuple[str, dict[str, bool], str]:
    wrong = [answer.strip() for answer in line.text(row, "Incorrect Answers").split(";") if answer.strip()]
    best = line.prompt(row, "Best Answer").strip()
    return line.prompt(row, "Question"), dict.fromkeys(wrong, False) | {best: True}, str(row.get("Category", ""))


def _from_targets(line: Line, fields: dict[str, Any]) -> tuple[str, dict[str, bool], str]:
    return line.prompt(fields, "question"), _mc1(line, fields.get("mc1_targets")), str(fields.get("category", ""))


def _mc1(line: Line, targets: Any) -> dict[str, bool]:
    """{"text": 1, …} as TruthfulQA's own file has it, or {"choices": […], "labels": […]} as the Hub's has."""
    if isinstance(targets, dict) and isinstance(targets.get("choices"), list):
        labels = targets.get("labels")
        if not isinstance(labels, list) or len(labels) != len(targets["choices"]):
            line.fail("'mc1_targets' has not as many labels as choices")
        targets = dict(zip(targets["choices"], labels, strict=True))
    options = targets if isinstance(targets, dict) else {}
    if not options or not all(isinstance(text, str) and label in (0, 1) for text, label in options.items()):
        line.fail("has no 'mc1_targets' of options with 1 or 0")
    return {text: label == 1 for text, label in options.items()}
