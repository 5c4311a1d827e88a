"""CARD.md: the record as Markdown, with the YAML head that model hubs read. Text in it is inert: nothing a person or a
model wrote can become markup."""

import re
from typing import Any

import yaml

from cohort.governance.schema import EVIDENCE_WORDS, Record
from cohort.governance.shown import Compared, shown
from cohort.governance.words import moment

_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#+!|~$&])")


def card_markdown(record: Record, digest: str) -> str:
    page = shown(record)
    parts = [
        _head(record),
        f"# Governance record of {escape(record.title)}",
        f"The run {record.state}. Sealed {moment(record.sealed_at)}; {page.stated} of {page.total} fields are stated.",
        f"Record digest: `sha256 {digest}`",
        "Check it offline: `cohort verify CARD.zip`. It computes every digest and the table below again from the files "
        "in this card. What it does not prove:",
        "\n".join(f"- {escape(line)}" for line in page.not_proven),
    ]
    for block in page.blocks:
        parts.append(f"## {block.title}")
        if block.comparisons:
            parts.append(_table(block.comparisons))
        rows = [
            f"| {escape(row.label)} | {escape(row.entry.text)}{_note(row.entry.note)} | {escape(row.mark)} |"
            for row in block.rows
        ]
        parts.append("\n".join(["| Field | Value | Source |", "| --- | --- | --- |", *rows]))
    parts.append("## Levels of evidence")
    parts.append("\n".join(f"- **{name}**: {words}" for name, words in EVIDENCE_WORDS.items()))
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """One line of text with every character of Markdown and HTML made inert."""
    return _MARKUP.sub(r"\\\1", " ".join(_printable(text).split()))


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() or char in "\n\t" else f"\\u{ord(char):04x}" for char in text)


def _note(note: str) -> str:
    return f" ({escape(note.rstrip('.'))})" if note else ""


def _table(comparisons: tuple[Compared, ...]) -> str:
    head = "| Suite | n | Before | After | Difference in points, 95 % | Smallest visible | Verdict |"
    rows = [
        f"| {' | '.join(escape(cell) for cell in (c.suite, c.problems, c.before, c.after, c.difference))} "
        f"| {escape(c.visible_from)} | {escape(c.verdict)} |"
        for c in comparisons
    ]
    return "\n".join([head, "| --- |" + " --- |" * 6, *rows])


def _head(record: Record) -> str:
    head: dict[str, Any] = {"tags": ["grpo", "reinforcement-learning", "cohort"]}
    base = record.subject.base_model.value
    if isinstance(base, dict) and base.get("revision"):
        head["base_model"] = base.get("source") or base.get("path")
    return f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---"
