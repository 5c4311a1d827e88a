"""Writes: request comparisons, make one, record what was known at a launch."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from django.db.models import Q
from django.db.models.functions import Now
from django.dispatch import receiver

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.base import artifacts
from cohort.base.storable import Refused
from cohort.catalog.models import EvalSuiteVersion, PromptDataset, dataset_added, suite_version_added
from cohort.catalog.run_inputs import dataset_texts
from cohort.contamination import selectors
from cohort.contamination.models import DataOverlap, LaunchOverlap
from cohort.runs.dispatch import SEAL_QUEUE, publish, publish_on_commit
from cohort.runs.models import Run
from cohort.runs.transitions import run_logged
from grpo_core.data.decontaminate import overlap
from grpo_core.data.lines import lines_of
from grpo_core.errors import ConfigError, DataError, FieldProblem
from grpo_core.evaluate.suites.reader import scan_items

EXAMPLES = 5
EXAMPLE_CHARS = 2000


class NotComparable(Refused, code="not_comparable"):
    """A file is not stored any more, or cannot be read. The message says which."""


def compared(row: DataOverlap) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """(the report, the first touched items with their nearest training texts). Raises NotComparable."""
    other = row.suite_version or row.heldout
    assert other is not None, "a constraint of the table"
    for source in (row.dataset, other):
        if not artifacts.exists(source.artifact):
            raise NotComparable(f"the file of {source} is no longer stored")
    try:
        items, options = dict[str, str](), dict[str, tuple[str, ...]]()
        for name, text, choices in _texts(other):
            items[name], options[name] = text, choices
        report = overlap(_prompts(row.dataset), items.items(), options)
        sensitive = row.suite_version is not None and row.suite_version.sensitive
        return report, [] if sensitive else _examples(report, items, options, row.dataset)
    except DataError as error:
        raise NotComparable(str(error)) from None


def _prompts(dataset: PromptDataset) -> Iterator[tuple[str, str]]:
    return ((name, text) for name, text, _ in _texts(dataset))


def _texts(of: PromptDataset | EvalSuiteVersion) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(id, text, options) of every row or item of the file."""
    if isinstance(of, PromptDataset):
        yield from ((name, text, ()) for name, text in dataset_texts(of))
        return
    with artifacts.open_read(of.artifact) as handle:
        for item in scan_items(lines_of(handle, str(of)), scorer=None, source=str(of)):
            yield item.id, item.prompt, item.choices


def _examples(
    report: dict[str, Any], items: Mapping[str, str], options: Mapping[str, tuple[str, ...]], dataset: PromptDataset
) -> list[dict[str, str]]:
    first = report["touched"][:EXAMPLES]
    nearest = {hit["id"]: next(iter(hit["by"].values()))["train"] for hit in first}
    needed = set(nearest.values())
    texts = {name: text for name, text in _prompts(dataset) if name in needed} if needed else {}
    shown = {hit["id"]: [items[hit["id"]], *(options[hit["id"]] if "options" in hit["by"] else ())] for hit in first}
    return [
        {"id": name, "train": train, "item_text": _cut("\n".join(shown[name])), "train_text": _cut(texts[train])}
        for name, train in nearest.items()
    ]


def _cut(text: str) -> str:
    return text if len(text) <= EXAMPLE_CHARS else text[: EXAMPLE_CHARS - 1] + "…"


TASK = "cohort.contamination.check"
UNANSWERED = timedelta(minutes=2)
"""A message that no worker took for so long is sent again."""
UNFINISHED = timedelta(minutes=30)
"""A comparison that was begun and not finished for so long was lost with its process."""

_Pair = tuple[PromptDataset, EvalSuiteVersion | None, PromptDataset | None]
"""A dataset to train on, and the suite version or the held-out dataset to compare it with."""

log = logging.getLogger(__name__)


@receiver(dataset_added)
def request_dataset_comparisons(dataset: PromptDataset, **_: Any) -> None:
    """Compare a new dataset with every suite version of its project and every dataset that its runs hold out."""
    versions = EvalSuiteVersion.objects.filter(suite__project=dataset.project)
    heldout = PromptDataset.objects.filter(evaluated_runs__project=dataset.project).exclude(pk=dataset.pk).distinct()
    _request([(dataset, version, None) for version in versions] + [(dataset, None, other) for other in heldout])


@receiver(suite_version_added)
def request_suite_comparisons(version: EvalSuiteVersion, **_: Any) -> None:
    """Compare a new suite version with every dataset of its project."""
    _request([(dataset, version, None) for dataset in PromptDataset.objects.filter(project=version.suite.project)])


def request_comparisons(
    dataset: PromptDataset, heldout: PromptDataset | None, versions: Iterable[EvalSuiteVersion]
) -> None:
    """What a run of this choice is concerned with and nobody requested yet, such as a dataset held out for the first
    time."""
    pairs: list[_Pair] = [(dataset, version, None) for version in versions]
    if heldout is not None and heldout.pk != dataset.pk:
        pairs.append((dataset, None, heldout))
    _request(pairs)


def _request(pairs: list[_Pair]) -> None:
    requested = DataOverlap.objects.filter(dataset__in={dataset for dataset, _, _ in pairs})
    known = set(requested.values_list("dataset", "suite_version", "heldout"))
    for dataset, version, heldout in pairs:
        if (dataset.pk, version and version.pk, heldout and heldout.pk) in known:
            continue
        row, made = DataOverlap.objects.get_or_create(
            dataset=dataset, suite_version=version, heldout=heldout, defaults={"asked_at": Now()}
        )
        if made:
            publish_on_commit(TASK, row.pk, SEAL_QUEUE)


def republish_pending() -> None:
    """Publish again what was requested and not answered. A message may be lost, and a process may end."""
    unanswered = Q(begun_at=None, asked_at__lt=Now() - UNANSWERED) | Q(begun_at__lt=Now() - UNFINISHED)
    waiting = DataOverlap.objects.filter(unanswered, at=None)
    for pk in list(waiting.values_list("pk", flat=True)):
        if waiting.filter(pk=pk).update(asked_at=Now(), begun_at=None):
            publish(TASK, pk, SEAL_QUEUE)


def check(overlap_id: int) -> None:
    """Make the comparison, unless another process has it or has made it. Takes seconds to minutes."""
    mine = DataOverlap.objects.filter(pk=overlap_id, at=None, begun_at=None).update(begun_at=Now())
    row = DataOverlap.objects.select_related("dataset", "suite_version__suite", "heldout").filter(pk=overlap_id).first()
    if not mine or row is None:
        return
    try:
        row.report, row.examples = compared(row)
    except NotComparable as why:
        row.fault = str(why)
    DataOverlap.objects.filter(pk=overlap_id).update(
        report=row.report, examples=row.examples, fault=row.fault, at=Now()
    )
    log.info("overlap of %s: %s", row, row.fault or (row.report and row.report["counts"]))


def record_launch_overlaps(*, run: Run, actor: User, seen: str) -> None:
    """Store what is known of the overlaps of the run's data, in the transaction of its launch.

    Raises ConfigError when evaluation items are in the data and `seen` is not `selectors.token` of just that: the
    person must have seen these figures.
    """
    request_comparisons(run.dataset, run.eval_dataset, EvalSuiteVersion.objects.filter(run_suites__run=run))
    pairs = selectors.of_run(run)
    expected = selectors.token(pairs)
    if expected and seen != expected:
        raise ConfigError(
            "evaluation items are in the training data: tick that you have seen it",
            tuple(FieldProblem("overlap_seen", pair.text) for pair in pairs if pair.touched),
        )
    figures = [pair.figures() for pair in pairs]
    LaunchOverlap.objects.create(run=run, by=actor, pairs=figures, acknowledged=bool(expected))
    if expected:
        touched = [pair for pair in figures if pair["touched"]]
        data = {"config_digest": run.config_digest, "overlaps": touched}
        run_logged(run=run, actor=audit.who(actor), kind="overlap_seen", data=data)
