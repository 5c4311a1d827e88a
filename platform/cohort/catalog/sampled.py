"""Datasets that runs of kind `sample` wrote. The bytes come from a machine that runs untrusted code, so every row is
read before a row of the catalog is made."""

import logging
from collections.abc import Iterator, Mapping
from typing import IO, Any

from django.conf import settings
from django.db import IntegrityError, transaction

from cohort.accounts.models import Project
from cohort.accounts.quotas import over_project
from cohort.audit import services as audit
from cohort.base import artifacts
from cohort.catalog.dataset_files import PREVIEW_CHARS, PREVIEW_PROBLEMS
from cohort.catalog.models import PromptDataset
from cohort.catalog.services import uploaded_bytes
from grpo_core.data.containers import rows_of
from grpo_core.data.conversations import read_messages
from grpo_core.data.lines import Line, RowFaults
from grpo_core.errors import DataError

ROWS = {
    "conversations": "prompt and completion, or messages",
    "pairs": "prompt or messages, chosen and rejected",
    "scores": "prompt or messages, completion and score",
}
"""Layout of the rows → its fields."""
NAME_CHARS = 120

log = logging.getLogger(__name__)


def sampled_dataset_create(
    *, project: Project, run_id: int, run_name: str, node: str, content: str, rows: int, size: int, sha256: str,
    counts: Mapping[str, int], handle: IO[bytes],
) -> PromptDataset:  # fmt: skip
    """The dataset of the run's file in `handle`, whose size and digest the caller has checked. The same file of the
    same run again is the same dataset. Raises DataError for a file that is not what was announced, and where the
    project has no room for it."""
    existing = PromptDataset.objects.filter(project=project, sampled_by=run_id, sha256=sha256).first()
    if existing is not None:
        return existing
    if size > settings.COHORT_MAX_DATASET_BYTES:
        raise DataError(f"the file has {size:,} bytes; a dataset has {settings.COHORT_MAX_DATASET_BYTES:,} at most")
    if fault := over_project(project, "max_upload_bytes", used=uploaded_bytes(project), more=size):
        raise DataError(fault)
    dataset = PromptDataset(project=project, content=content, sha256=sha256, size=size, sampled_by_id=run_id)
    _survey(dataset, handle, announced=rows)
    completions = sum(counts.values())
    dataset.source = (
        f"Sampled by the run {run_name} (run {run_id}): {counts.get('kept', 0):,} of {completions:,} completions kept"
    )
    if not artifacts.exists(dataset.artifact):
        handle.seek(0)
        artifacts.put(dataset.artifact, iter(lambda: handle.read(1 << 20), b""))
    _save(dataset, run_name, node)
    log.info("dataset %r of %d rows sampled in %r", dataset.name, dataset.problems, project.slug)
    return dataset


def _save(dataset: PromptDataset, run_name: str, node: str) -> None:
    """Under the run's name, or the first like it that is free."""
    for name in _names(run_name, dataset.sampled_by_id):
        dataset.name = name
        try:
            with transaction.atomic():
                dataset.save()
                audit.log(
                    actor=f"node:{node}",
                    kind="dataset_sampled",
                    subject=f"dataset:{dataset.pk}",
                    project=dataset.project,
                    after={
                        "name": name,
                        "sha256": dataset.sha256,
                        "content": dataset.content,
                        "rows": dataset.problems,
                        "run": dataset.sampled_by_id,
                    },
                )
        except IntegrityError:
            if not PromptDataset.objects.filter(project=dataset.project, name=name).exists():
                raise
            dataset.pk = None
        else:
            return


def _names(run_name: str, run_id: int | None) -> Iterator[str]:
    yield run_name
    number = 1
    while True:
        end = f" (run {run_id})" if number == 1 else f" (run {run_id}, {number})"
        yield run_name[: NAME_CHARS - len(end)] + end
        number += 1


def _survey(dataset: PromptDataset, handle: IO[bytes], *, announced: int) -> None:
    """Read every row once: layout, count, prompt lengths, the first few. Raises DataError."""
    handle.seek(0)
    faults = RowFaults()
    count = characters = longest = 0
    shortest: int | None = None
    dataset.format, dataset.container = "", "jsonl"
    dataset.preview = []
    with faults.collected():
        for line, fields in rows_of(handle, source="dataset/rows.jsonl", faults=faults):
            with faults.collected():
                layout, prompt, answer = _row(line, fields)
                if dataset.format not in ("", layout):
                    line.fail(f"is a row of {layout}, and those before it are of {dataset.format}")
                dataset.format = layout
                count, characters = count + 1, characters + len(prompt)
                longest = max(longest, len(prompt))
                shortest = len(prompt) if shortest is None else min(shortest, len(prompt))
                if len(dataset.preview) < PREVIEW_PROBLEMS:
                    shown = {"id": _origin(fields), "prompt": prompt, "answer": answer}
                    dataset.preview.append({name: text[:PREVIEW_CHARS] for name, text in shown.items()})
    faults.raise_any()
    if count != announced:
        raise DataError(f"the file has {count:,} rows, and {announced:,} were announced")
    expected = "conversations" if dataset.format == "conversations" else "preferences"
    if dataset.content != expected:
        raise DataError(f"the rows are {dataset.format}, and {dataset.content} were announced")
    dataset.problems = count
    dataset.prompt_chars = {"min": shortest, "mean": characters / count, "max": longest}


def _row(line: Line, fields: dict[str, Any]) -> tuple[str, str, str]:
    """Layout, prompt and answer of a row."""
    turns = read_messages(line, fields["messages"], "messages") if "messages" in fields else ()
    prompt = "\n\n".join(turn.content for turn in turns) if turns else line.text(fields, "prompt")
    if "chosen" in fields:
        answer = f"{line.text(fields, 'chosen')}\n\nabove\n\n{line.text(fields, 'rejected')}"
        return "pairs", prompt, answer
    if "score" in fields:
        if not isinstance(fields["score"], int | float) or isinstance(fields["score"], bool):
            line.fail("'score' is not a number")
        return "scores", prompt, f"{line.text(fields, 'completion')}\n\nscore {fields['score']:g}"
    if not turns:
        return "conversations", prompt, line.text(fields, "completion")
    if turns[-1].role != "assistant":
        line.fail("'messages' ends without an answer of the assistant")
    return "conversations", "\n\n".join(turn.content for turn in turns[:-1]), turns[-1].content


def _origin(fields: dict[str, Any]) -> str:
    origin = fields.get("from")
    return str(origin.get("problem_id", "")) if isinstance(origin, dict) else ""
