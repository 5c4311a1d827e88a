"""Reads of what was found, and its figures in words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.catalog.models import EvalSuiteVersion, PromptDataset
from cohort.contamination.models import DataOverlap
from cohort.runs.models import Run

METHODS = {
    "exact": "word for word",
    "ngram13": "by 13 words in a row",
    "ngram8": "by 70 % of their 8-word sequences",
    "minhash": "nearly the same",
    "options": "by their options",
}
"""What a method of the report found, as pages call it."""


@dataclass(frozen=True)
class Pair:
    """A comparison as pages show it."""

    row: DataOverlap

    @property
    def name(self) -> str:
        """What the dataset was compared with."""
        return str(self.row.suite_version or self.row.heldout)

    @property
    def kind(self) -> str:
        return "suite" if self.row.suite_version_id else "held-out dataset"

    @property
    def state(self) -> str:
        if self.row.at is None:
            return "being checked"
        if self.row.report is None:
            return "not checked"
        return "found" if self.touched else "none"

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.row.report["counts"]) if self.row.report else {}

    @property
    def items(self) -> int:
        return int(self.row.report["items"]["texts"]) if self.row.report else 0

    @property
    def touched(self) -> int:
        return self.counts.get("touched", 0)

    @property
    def same_but_numbers(self) -> int:
        return self.counts.get("same_but_numbers", 0)

    @property
    def methods(self) -> list[tuple[str, int | None]]:
        """(method in words, items that it found), of every method; None: the report is older than this field."""
        return [(words, self.counts.get(method)) for method, words in METHODS.items()]

    @property
    def sensitive(self) -> bool:
        return self.row.suite_version is not None and self.row.suite_version.sensitive

    @property
    def text(self) -> str:
        """One line for lists and the run form."""
        match self.state:
            case "being checked":
                return f"{self.name}: overlap with the training data is being checked"
            case "not checked":
                return f"{self.name}: overlap not checked: {self.row.fault}"
            case "none":
                more = f"; {self.same_but_numbers:,} the same but for numbers" if self.same_but_numbers else ""
                return f"{self.name}: none of {self.items:,} items is in the training data{more}"
            case _:
                methods = ", ".join(f"{count:,} {words}" for words, count in self.methods if count)
                stand = "is" if self.touched == 1 else "are"
                return f"{self.name}: {self.touched:,} of {self.items:,} items {stand} in the training data ({methods})"

    def figures(self) -> dict[str, Any]:
        """For the audit log and the record."""
        same = ("kind", "state", "items", "touched", "same_but_numbers")
        return {
            **{name: getattr(self, name) for name in same},
            "with": self.name,
            "id": self.row.suite_version_id or self.row.heldout_id,
            "by_method": {method: self.counts[method] for method in METHODS if method in self.counts},
            "fault": self.row.fault,
        }


def of_dataset(dataset: PromptDataset) -> list[Pair]:
    """The dataset to train on, with everything that it was compared with; what was found first."""
    order = ["found", "not checked", "being checked", "none"]
    return sorted((Pair(row) for row in _rows().filter(dataset=dataset)), key=lambda pair: order.index(pair.state))


def of_choice(
    dataset: PromptDataset, heldout: PromptDataset | None, versions: Iterable[EvalSuiteVersion]
) -> list[Pair]:
    """The comparisons that a run of this choice is concerned with, as far as they were requested."""
    numbers = [version.pk for version in versions]
    rows = [*_rows().filter(dataset=dataset, suite_version__in=numbers)] if numbers else []
    if heldout is not None:
        rows += _rows().filter(dataset=dataset, heldout=heldout)
    return [Pair(row) for row in rows]


def of_run(run: Run) -> list[Pair]:
    suites = EvalSuiteVersion.objects.filter(run_suites__run=run)
    return of_choice(run.dataset, run.eval_dataset, suites)


def token(pairs: Sequence[Pair]) -> str:
    """What a tick confirms as seen: changes with what was found."""
    return " ".join(f"{pair.row.pk}:{pair.touched}" for pair in pairs if pair.touched)


def at_launch(run: Run) -> dict[str, Any] | None:
    """What was known when the run was launched: {by, at, acknowledged, pairs}; None for runs from before this."""
    seen = getattr(run, "launch_overlap", None)
    if seen is None:
        return None
    return {"by": seen.by.username, "at": seen.at, "acknowledged": seen.acknowledged, "pairs": seen.pairs}


def _rows() -> Any:
    return DataOverlap.objects.select_related("suite_version__suite", "heldout", "dataset").order_by("id")
