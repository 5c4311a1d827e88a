"""CARD.md: the record as Markdown, with the YAML head that model hubs read. Text in it is inert: nothing a person or a
model wrote can become markup.

The head's scores are those after training; before, the difference and its interval are in the table below it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from cohort.evidence.plain_text import percent
from cohort.records.cards.reading import Reading
from cohort.records.document_view import Block
from cohort.records.schema_types import AUDIENCE_WORDS
from grpo_core.text import printable

FILE = "CARD.md"
_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#+!|~$&])")
_RATES = ("performance", "multilingual", "tool_use", "format")
"""Categories whose score is the share of items that were right."""
_TAGS = {
    "grpo": ("grpo", "reinforcement-learning"),
    "sft": ("sft",),
    "distill": ("sft", "distillation"),
    "reward_model": ("reward-model",),
    "sample": ("rejection-sampling",),
}
"""Kind of run → tags, as hubs know them."""
_HUB_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")


def card_markdown(reading: Reading) -> bytes:
    head = reading.head
    parts = [
        f"---\n{yaml.safe_dump(_metadata(reading), sort_keys=False, allow_unicode=True, width=1_000_000)}---",
        f"# Governance record of {escape(head['title'])}",
        f"The run {escape(head['state'])}. Sealed {escape(head['sealed_at'])}; {reading.view.stated} of "
        f"{reading.view.total} fields that this copy shows are stated. It is for "
        f"{AUDIENCE_WORDS[reading.document['audience']]}.",
        f"Seal `{reading.seal}`, short {reading.short_digest}. Check it offline: "
        "`python verify.pyz CARD.zip --key keys.json`, with the keys that the platform's operator gives you.",
    ]
    for block in reading.view.blocks:
        parts.append(f"## {escape(block.title)}")
        if block.comparisons:
            parts.append(_comparisons(block))
            parts.append(_legend(reading.view.verdicts))
        rows = [
            f"| {escape(row.label)} | {escape(row.text)}{_note(row.note)} | {escape(row.mark)} |" for row in block.rows
        ]
        parts.append("\n".join(["| Field | Value | Source |", "| --- | --- | --- |", *rows]))
        parts += [_table(table.caption, table.head, table.rows) for table in block.tables]
    return ("\n\n".join(parts) + "\n").encode()


def escape(text: object) -> str:
    """One line of text with every character of Markdown and HTML made inert."""
    return _MARKUP.sub(r"\\\1", printable(re.sub(r"[ \t\n]+", " ", str(text)).strip(" ")))


def _note(note: str) -> str:
    return f" ({escape(note.rstrip('.'))})" if note else ""


def _comparisons(block: Block) -> str:
    head = ("Suite", "n", "Before", "After", "Difference in points, 95 %", "Smallest visible", "Verdict")
    return _table(block.caption, head, [row.cells for row in block.comparisons])


def _legend(meanings: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- {escape(words)}: {escape(meaning)}." for words, meaning in meanings)


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([escape(cell) for cell in row] for row in rows)]
    return "\n".join([escape(caption), "", *(f"| {' | '.join(line)} |" for line in lines)])


def _metadata(reading: Reading) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    source = reading.value("subject.base_model", "source")
    if isinstance(source, str) and reading.value("subject.base_model", "revision") and _HUB_ID.fullmatch(source):
        metadata["base_model"] = source
        if reading.kind != "sample":  # which changes no weights
            metadata["base_model_relation"] = "finetune"
    languages = reading.value("data.prompts", "languages")
    if isinstance(languages, list) and languages:
        metadata["language"] = [_line(language) for language in languages]
    metadata |= {
        "library_name": "transformers",
        "pipeline_tag": "text-classification" if reading.kind == "reward_model" else "text-generation",
        "tags": [*_TAGS[reading.kind], "cohort"],
    }
    if results := list(_results(reading)):
        metadata["model-index"] = [{"name": _line(reading.head["title"]), "results": results}]
    return metadata


def _results(reading: Reading) -> Iterator[dict[str, Any]]:
    task = "text-classification" if reading.kind == "reward_model" else "text-generation"
    for comparison in reading.comparisons:
        if comparison["after"] is None:
            continue
        title = _line(comparison.get("title") or comparison["suite"])
        after: Mapping[str, Any] = comparison["after"]
        span, problems = after["interval"], comparison["problems"]
        metric = {
            "type": "accuracy" if comparison["category"] in _RATES else "score",
            "name": f"{title}, after training",
            "value": after["share"],
            "config": f"95 % interval {percent(span['low'])} to {percent(span['high'])}, {problems} items",
            "args": {"interval_low": span["low"], "interval_high": span["high"], "items": problems},
        }
        yield {
            "task": {"type": task, "name": _line(comparison["category"]).replace("_", " ")},
            "dataset": {"type": _line(comparison["suite"]), "name": title},
            "metrics": [metric],
        }


def _line(text: object) -> str:
    """Text in the head, which hubs show as they like: without the signs that begin markup."""
    return printable(" ".join(re.sub(r"[<>\[\]`]", " ", str(text)).split())) or "unnamed"
