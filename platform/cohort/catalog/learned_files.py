"""Reads a file of conversations or preferences as it is uploaded: its layout, how many rows, the first of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from django.conf import settings

from cohort.catalog.models import DatasetContent, PromptDataset
from grpo_core.data.containers import container_of, rows_of
from grpo_core.data.lines import RowFaults
from grpo_core.data.preferences import Pair, Preference, scan_preferences
from grpo_core.data.supervised import CONVERSATION_LAYOUTS, Conversation, scan_conversations
from grpo_core.errors import DataError

LEARNED = (DatasetContent.CONVERSATIONS, DatasetContent.PREFERENCES)
"""Contents that are learned from as they are."""
TITLES = {
    **{name: layout.title for name, layout in CONVERSATION_LAYOUTS.items()},
    "conversations": "Sampled conversations",
    "pairs": "Pairs",
    "scores": "Scored completions",
}
"""Layout of such rows → what a page calls it."""
PREVIEW_ROWS = 5
PREVIEW_CHARS = 2000


@dataclass(frozen=True)
class LearnedRow:
    """A conversation or a preference, as text."""

    layout: str
    """Of preferences; empty of a conversation, whose layout is its file's."""
    text: str
    """All of it: what evaluation items are looked for in."""
    id: str
    shown: dict[str, Any]
    """As `PromptDataset.preview` has it."""


def recognise(handle: IO[bytes], *, source: str) -> DatasetContent:
    """What the first row of a file is. One that could be a problem too, such as a chat that ends with an answer, is
    taken as one: the answer is then the reference. Raises DataError for a file that cannot be read."""
    faults = RowFaults()
    for _, fields in rows_of(handle, source=source, faults=faults):
        names = {name for name, value in fields.items() if value is not None}
        if {"chosen", "rejected"} <= names or {"completion", "score"} <= names:
            return DatasetContent.PREFERENCES
        return DatasetContent.CONVERSATIONS if "completion" in names else DatasetContent.PROBLEMS
    return DatasetContent.PROBLEMS


def learned_rows(handle: IO[bytes], content: str, *, source: str) -> Iterator[LearnedRow]:
    """The rows of a file that can seek, each checked. Raises DataError as `loaders.scan_problems`."""
    if content == DatasetContent.CONVERSATIONS:
        yield from map(_conversation, scan_conversations(handle, source=source))
    else:
        yield from map(_preference, scan_preferences(handle, source=source))


def survey_learned(dataset: PromptDataset, handle: IO[bytes], file_name: str) -> None:
    """Read every row once. Raises DataError with the faults of its rows."""
    dataset.container, _ = container_of(handle, source=file_name)
    handle.seek(0)
    count = characters = longest = 0
    shortest: int | None = None
    dataset.preview = preview = list[dict[str, Any]]()
    layout, most = "", settings.COHORT_MAX_DATASET_PROBLEMS
    for row in learned_rows(handle, dataset.content, source=file_name):
        if count == most:
            raise DataError(f"{file_name} holds more than {most:,} rows. Split it, or sample from it.")
        layout, length = row.layout, len(row.text)
        count, characters, longest = count + 1, characters + length, max(longest, length)
        shortest = length if shortest is None else min(shortest, length)
        if len(preview) < PREVIEW_ROWS:
            preview.append(row.shown)
    handle.seek(0)
    dataset.format = layout or _conversation_layout(handle, file_name)
    dataset.mapping, dataset.problems, dataset.columns = {}, count, {}
    dataset.prompt_chars = {"min": shortest, "mean": characters / count, "max": longest}


def _conversation_layout(handle: IO[bytes], source: str) -> str:
    """Of a file whose rows were read."""
    _, fields = next(iter(rows_of(handle, source=source, faults=RowFaults())))
    return next(name for name, layout in CONVERSATION_LAYOUTS.items() if set(layout.needs) <= fields.keys())


def _conversation(row: Conversation) -> LearnedRow:
    messages = [[message.role, _cut(message.content)] for message in row.messages]
    return LearnedRow("", row.whole_text, row.id, {"id": row.id, "messages": messages})


def _preference(row: Preference) -> LearnedRow:
    shown = {"id": row.problem.id, "prompt": _cut(row.problem.text)}
    text = "\n\n".join((row.problem.text, *row.completions))
    if isinstance(row, Pair):
        pair = {"chosen": _cut(row.chosen), "rejected": _cut(row.rejected)}
        margin = {"margin": row.margin} if row.margin else {}
        return LearnedRow("pairs", text, row.problem.id, {**shown, **pair, **margin})
    return LearnedRow("scores", text, row.problem.id, {**shown, "completion": _cut(row.completion), "score": row.score})


def _cut(text: str) -> str:
    return text if len(text) <= PREVIEW_CHARS else text[:PREVIEW_CHARS] + "…"
