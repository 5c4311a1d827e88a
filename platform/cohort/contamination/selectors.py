"""Reads of what was found."""

from collections.abc import Iterable, Sequence
from typing import Any

from django.db.models import QuerySet

from cohort.catalog.models import EvalSuiteVersion, PromptDataset
from cohort.contamination.models import DataOverlap
from cohort.runs.models import Run


def of_dataset(dataset: PromptDataset) -> list[DataOverlap]:
    """The dataset to train on, with everything that it was compared with; what was found first."""
    order = ["found", "not checked", "being checked", "none"]
    return sorted(_rows().filter(dataset=dataset), key=lambda pair: order.index(pair.state))


def of_choice(
    dataset: PromptDataset, heldout: PromptDataset | None, versions: Iterable[EvalSuiteVersion]
) -> list[DataOverlap]:
    """The comparisons that a run of this choice is concerned with, as far as they were requested."""
    numbers = [version.pk for version in versions]
    rows = [*_rows().filter(dataset=dataset, suite_version__in=numbers)] if numbers else []
    if heldout is not None:
        rows += _rows().filter(dataset=dataset, heldout=heldout)
    return rows


def of_run(run: Run) -> list[DataOverlap]:
    suites = EvalSuiteVersion.objects.filter(run_suites__run=run)
    return of_choice(run.dataset, run.eval_dataset, suites)


def token(pairs: Sequence[DataOverlap]) -> str:
    """What a tick confirms as seen: changes with what was found."""
    return " ".join(f"{pair.pk}:{pair.touched}" for pair in pairs if pair.touched)


def at_launch(run: Run) -> dict[str, Any] | None:
    """What was known when the run was launched: {by, at, acknowledged, pairs}; None for runs from before this."""
    seen = getattr(run, "launch_overlap", None)
    if seen is None:
        return None
    return {"by": seen.by.username, "at": seen.at, "acknowledged": seen.acknowledged, "pairs": seen.pairs}


def _rows() -> QuerySet[DataOverlap]:
    return DataOverlap.objects.select_related("suite_version__suite", "heldout", "dataset").order_by("id")
