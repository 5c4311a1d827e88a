"""Datasets of the catalog that runs made: what one of kind `sample` wrote, and what people judged of a run's
completions. The first come from a machine that runs untrusted code, so every row of a file is read before there is a
dataset."""

import hashlib
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from django.conf import settings
from django.db import IntegrityError, transaction

from cohort.accounts.models import Project, User
from cohort.accounts.quotas import over_project
from cohort.audit import services as audit
from cohort.base import artifacts
from cohort.catalog.dataset_files import survey
from cohort.catalog.models import DatasetContent, PromptDataset, dataset_added
from cohort.catalog.services import uploaded_bytes
from grpo_core.errors import DataError
from grpo_core.files.dataset import FOLDER, ROWS

FILE = f"{FOLDER}/{ROWS}"
"""How messages call the file."""
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
    dataset = PromptDataset(project=project, content=content, sha256=sha256, size=size, sampled_by_id=run_id)
    dataset.source = (
        f"Sampled by the run {run_name} (run {run_id}): {counts.get('kept', 0):,} of {sum(counts.values()):,} "
        "completions kept"
    )
    survey(dataset, handle, FILE)
    if dataset.problems != rows:
        raise DataError(f"the file has {dataset.problems:,} rows, and {rows:,} were announced")
    _store(dataset, handle, _names(run_name, run_id), f"node:{node}", "dataset_sampled", {"run": run_id})
    return dataset


def judged_dataset_create(
    *, project: Project, actor: User, run_id: int, run_name: str, lines: Iterable[bytes], made: dict[str, Any]
) -> PromptDataset:
    """The preferences that people's judgements of a run's completions give, as rows of pairs. `made`: {judgements:
    run, and counts}. The same judgements again are the same dataset. Raises DataError where the project has no room."""
    with tempfile.TemporaryFile() as spooled:
        digest, size = hashlib.sha256(), 0
        for line in lines:
            digest.update(line)
            size += spooled.write(line)
        name = {"sha256": digest.hexdigest(), "made__judgements": run_id}
        if (existing := PromptDataset.objects.filter(project=project, **name).first()) is not None:
            return existing
        dataset = PromptDataset(project=project, content=DatasetContent.PREFERENCES, sha256=digest.hexdigest())
        dataset.size, dataset.made, dataset.created_by = size, made, actor
        dataset.source = f"Judgements of the completions of the run {run_name} (run {run_id}) by reviewers"
        survey(dataset, spooled, FILE)
        names = _names(f"judgements of {run_name}"[:NAME_CHARS], run_id)
        _store(dataset, spooled, names, audit.who(actor), "dataset_judged", made)
        dataset_added.send(sender=PromptDataset, dataset=dataset)
    return dataset


def _store(
    dataset: PromptDataset, handle: IO[bytes], names: Iterator[str], actor: str, kind: str, origin: dict[str, Any]
) -> None:
    """Store file and row, under the first of `names` that is free. Raises DataError."""
    project = dataset.project
    if dataset.size > settings.COHORT_MAX_DATASET_BYTES:
        raise DataError(f"the file has {dataset.size:,} bytes; a dataset has {settings.COHORT_MAX_DATASET_BYTES:,}")
    if fault := over_project(project, "max_upload_bytes", used=uploaded_bytes(project), more=dataset.size):
        raise DataError(fault)
    if not artifacts.exists(dataset.artifact):
        handle.seek(0)
        artifacts.put(dataset.artifact, iter(lambda: handle.read(1 << 20), b""))
    for name in names:
        dataset.name = name
        after = {"name": name, "sha256": dataset.sha256, "content": dataset.content, "rows": dataset.problems, **origin}
        try:
            with transaction.atomic():
                dataset.save()
                audit.log(actor=actor, kind=kind, subject=f"dataset:{dataset.pk}", project=project, after=after)
        except IntegrityError:
            if not PromptDataset.objects.filter(project=project, name=name).exists():
                raise
            dataset.pk = None
        else:
            log.info("dataset %r of %d rows stored in %r", name, dataset.problems, project.slug)
            return


def _names(run_name: str, run_id: int) -> Iterator[str]:
    yield run_name
    number = 1
    while True:
        end = f" (run {run_id})" if number == 1 else f" (run {run_id}, {number})"
        yield run_name[: NAME_CHARS - len(end)] + end
        number += 1
