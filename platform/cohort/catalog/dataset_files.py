"""Reads a file of problems as it is uploaded: what it is, how many problems, the first of them, its faults."""

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, Any

from django.conf import settings
from django.core.exceptions import ValidationError

from cohort.catalog.learned_files import LEARNED, recognise, survey_learned
from cohort.catalog.learned_files import TITLES as LEARNED_TITLES
from cohort.catalog.models import DatasetContent, PromptDataset
from grpo_core.data.containers import TITLES, rows_of
from grpo_core.data.layouts import LAYOUTS
from grpo_core.data.lines import RowFaults
from grpo_core.data.loaders import detect, scan_problems
from grpo_core.data.problem import Problem
from grpo_core.errors import DataError
from grpo_core.specs.fields import DataColumns

PREVIEW_PROBLEMS = 5
PREVIEW_CHARS = 2000
MAX_COLUMNS = 200
"""Fields of problems other than prompt; with more of them, data is probably used as names."""
SAMPLE_ROWS = 3
SAMPLE_CHARS = 160


@dataclass
class FileCheck:
    """What a file is and how it would be read, for a person to change; nothing of it is stored."""

    dataset: PromptDataset
    """Not saved: count, fields and preview of what was read."""
    fault: str = ""
    """A line for each row that has one, up to MAX_FAULTS; empty where every row was read."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """{role: field that is read for it}; empty where no layout fits."""
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    """The first rows as the file has them."""

    @property
    def title(self) -> str:
        """Container and layout in words."""
        return ", ".join(filter(None, [TITLES.get(self.dataset.container), layout_title(self.dataset)]))

    @property
    def columns(self) -> list[tuple[str, str, list[str]]]:
        """(field, what it is read as, its values in the first rows) of each field."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        read = {name: role for role, path in self.roles.items() for name in (path.partition(".")[0], path)}
        return [
            (name, read.get(name, ""), [_value_text(row[name]) if name in row else "" for row in self.rows])
            for name in names
        ]

    @property
    def paths(self) -> list[str]:
        """Fields that may be chosen for a role, with those inside of objects."""
        paths = dict.fromkeys(name for row in self.rows for name in row)
        for row in self.rows:
            inner = ((name, value) for name, value in row.items() if isinstance(value, dict))
            paths |= dict.fromkeys(f"{name}.{child}" for name, value in inner for child in value)
        return list(paths)[:MAX_COLUMNS]


def layout_title(dataset: PromptDataset) -> str:
    """Empty where no layout is known yet."""
    if dataset.content in LEARNED:
        return LEARNED_TITLES.get(dataset.format, "")
    layout = LAYOUTS.get(dataset.format)
    return layout.title if layout else ""


def check_file(
    chunks: Iterable[bytes], *, content: str = "auto", format: str, columns: DataColumns, file_name: str
) -> FileCheck:
    """Reads the whole file and stores nothing. Raises ValidationError for one that is too large."""
    checked = FileCheck(PromptDataset(format=format, mapping=columns.model_dump(exclude_none=True)))
    with tempfile.TemporaryFile() as spooled:
        checked.dataset.size = spool(chunks, spooled)[1]
        try:
            rows = rows_of(spooled, source=file_name, faults=RowFaults())
            checked.rows = [fields for _, fields in islice(rows, SAMPLE_ROWS)]
            checked.dataset.content = content_of(spooled, content, file_name)
            if checked.dataset.content in LEARNED:
                survey(checked.dataset, spooled, file_name)
                return checked
            detected = detect(spooled, format, columns=columns, source=file_name)
            checked.roles = {role: path for role, path in detected.reading.columns.items() if path}
            survey(checked.dataset, spooled, file_name)
        except DataError as error:
            checked.fault = str(error)
    return checked


def _value_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SAMPLE_CHARS else text[:SAMPLE_CHARS] + "…"


def spool(chunks: Iterable[bytes], handle: IO[bytes]) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    limit = settings.COHORT_MAX_DATASET_BYTES
    for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise ValidationError({"file": f"The file is larger than {limit:,} bytes. Split it, or sample from it."})
        digest.update(chunk)
        handle.write(chunk)
    return digest.hexdigest(), size


def content_of(handle: IO[bytes], content: str, file_name: str) -> DatasetContent:
    """What the rows are: as a person says, else (auto) as the first row does. Raises DataError."""
    if content != "auto":
        return DatasetContent(content)
    handle.seek(0)
    return recognise(handle, source=file_name)


def survey(dataset: PromptDataset, handle: IO[bytes], file_name: str) -> None:
    """Read every row once: layout, count, lengths, fields, the first few. Raises DataError with the faults of its
    rows."""
    handle.seek(0)
    if dataset.content in LEARNED:
        survey_learned(dataset, handle, file_name)
        return
    columns = DataColumns.model_validate(dataset.mapping)
    detected = detect(handle, dataset.format, columns=columns, source=file_name)
    dataset.format, dataset.container = detected.reading.format, detected.container
    count = characters = longest = 0
    fields: Counter[str] = Counter()
    shortest: int | None = None
    preview: list[dict[str, Any]] = []
    dataset.preview = preview
    most = settings.COHORT_MAX_DATASET_PROBLEMS
    for problem in scan_problems(handle, dataset.format, columns=columns, source=file_name):
        if count == most:
            raise DataError(f"{file_name} holds more than {most:,} problems. Split it, or sample from it.")
        length = len(problem.text)
        count, characters = count + 1, characters + length
        longest = max(longest, length)
        fields.update(problem.fields[1:])
        if len(fields) > MAX_COLUMNS:
            raise DataError(
                f"{file_name} has more than {MAX_COLUMNS} different fields. Put what varies into one field."
            )
        shortest = length if shortest is None else min(shortest, length)
        if len(preview) < PREVIEW_PROBLEMS:
            preview.append(_shown(problem))
    dataset.problems = count
    dataset.columns = dict(sorted(fields.items()))
    dataset.prompt_chars = {"min": shortest, "mean": characters / count, "max": longest}


def _shown(problem: Problem) -> dict[str, Any]:
    """A problem for a page, long texts cut."""
    shown: dict[str, Any] = {"id": problem.id, "prompt": _cut(problem.prompt), "answer": _cut(problem.answer)}
    if problem.messages:
        shown["messages"] = [[message.role, _cut(message.content)] for message in problem.messages]
    if problem.other_answers:
        shown["other_answers"] = [_cut(answer) for answer in problem.other_answers]
    return shown


def _cut(text: str) -> str:
    return text if len(text) <= PREVIEW_CHARS else text[:PREVIEW_CHARS] + "…"
