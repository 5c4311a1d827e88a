"""CARD.md: the record as Markdown, with the YAML head that model hubs read. Text in it is inert: nothing a person or a
model wrote can become markup.

Checking a card makes this file again from record.json: what it gives for a record belongs to the format `SCHEMA`.
"""

import re
from typing import Any

import yaml

from cohort.governance.schema import Record
from cohort.governance.shown import CHECKED, Block, shown
from cohort.governance.words import moment, printable

_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#+!|~$&])")


def card_markdown(record: Record) -> str:
    page = shown(record)
    parts = [
        _head(record),
        f"# Governance record of {escape(record.title)}",
        f"The run {record.state}. Sealed {moment(record.sealed_at)}; {page.stated} of {page.total} fields are stated.",
        f"Check it offline: `cohort verify CARD.zip`. {escape(CHECKED)} It does not prove:",
        "\n".join(f"- {escape(line)}" for line in page.not_proven),
    ]
    for block in page.blocks:
        parts.append(f"## {block.title}")
        if block.comparisons:
            parts.append(_table(block))
        rows = [
            f"| {escape(row.label)} | {escape(row.entry.text)}{_note(row.entry.note)} | {escape(row.mark)} |"
            for row in block.rows
        ]
        parts.append("\n".join(["| Field | Value | Source |", "| --- | --- | --- |", *rows]))
    parts.append("## Where a value comes from")
    parts.append("\n".join(f"- **{mark}**: {words}" for mark, words in page.legend))
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """One line of text with every character of Markdown and HTML made inert."""
    return _MARKUP.sub(r"\\\1", printable(re.sub(r"[ \t\n]+", " ", text).strip(" ")))


def _note(note: str) -> str:
    return f" ({escape(note.rstrip('.'))})" if note else ""


def _table(block: Block) -> str:
    head = "| Suite | n | Before | After | Difference in points, 95 % | Smallest visible | Verdict |"
    rows = [
        f"| {' | '.join(escape(cell) for cell in (c.suite, c.problems, c.before, c.after, c.difference))} "
        f"| {escape(c.visible_from)} | {escape(c.verdict)} |"
        for c in block.comparisons
    ]
    return "\n".join([escape(block.caption), "", head, "| --- |" + " --- |" * 6, *rows])


def _head(record: Record) -> str:
    head: dict[str, Any] = {"tags": ["grpo", "reinforcement-learning", "cohort"]}
    base = record.subject.base_model.value
    if isinstance(base, dict) and base.get("revision"):
        head["base_model"] = base.get("source") or base.get("path")
    return f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---"
