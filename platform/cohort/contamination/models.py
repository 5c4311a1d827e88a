"""What was found of evaluation items in training problems, and what was known of it when a run was launched."""

from typing import Any, ClassVar

from django.conf import settings
from django.db import models

from cohort.catalog.models import EvalSuiteVersion, PromptDataset
from cohort.runs.models import Run

METHODS = {
    "exact": "exact",
    "ngram13": "13-gram",
    "ngram8": "8-gram ≥ 70 %",
    "minhash": "near-duplicate (MinHash)",
    "options": "options",
}
"""What a method of the report found, as pages call it."""


class DataOverlap(models.Model):
    """One dataset to train on, compared with one suite version or one held-out dataset. Files never change, so neither
    does what was found: a pair is compared once."""

    dataset = models.ForeignKey(PromptDataset, on_delete=models.CASCADE, related_name="overlaps")
    suite_version = models.ForeignKey(EvalSuiteVersion, on_delete=models.CASCADE, null=True, related_name="overlaps")
    heldout = models.ForeignKey(PromptDataset, on_delete=models.CASCADE, null=True, related_name="overlaps_held_out")
    asked_at = models.DateTimeField()
    """When it was requested, or requested again because no result came."""
    begun_at = models.DateTimeField(null=True)
    at = models.DateTimeField(null=True)
    """When it was finished; null: being checked."""
    report = models.JSONField(null=True)
    """What `grpo_core.data.decontaminate.overlap` returned; null when it could not be compared."""
    examples = models.JSONField(default=list)
    """The first touched items, as [{id, train, item_text, train_text}]; none of a sensitive suite."""
    fault = models.TextField(blank=True)
    """Why it could not be compared."""

    class Meta:
        ordering: ClassVar = ["dataset", "id"]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(suite_version=None) ^ models.Q(heldout=None), name="overlap_with_one_thing"
            ),
            models.UniqueConstraint(
                fields=["dataset", "suite_version"], condition=models.Q(heldout=None), name="overlap_with_suite_once"
            ),
            models.UniqueConstraint(
                fields=["dataset", "heldout"], condition=models.Q(suite_version=None), name="overlap_with_heldout_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.dataset} and {self.suite_version or self.heldout}"

    @property
    def name(self) -> str:
        """What the dataset was compared with."""
        return str(self.suite_version or self.heldout)

    @property
    def kind(self) -> str:
        return "suite" if self.suite_version_id else "held-out dataset"

    @property
    def state(self) -> str:
        if self.at is None:
            return "being checked"
        if self.report is None:
            return "not checked"
        return "found" if self.touched else "none"

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.report["counts"]) if self.report else {}

    @property
    def items(self) -> int:
        return int(self.report["items"]["texts"]) if self.report else 0

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
        return self.suite_version is not None and self.suite_version.sensitive

    @property
    def text(self) -> str:
        """One line for lists and the run form."""
        match self.state:
            case "being checked":
                return f"{self.name}: overlap with the training data is being checked"
            case "not checked":
                return f"{self.name}: overlap not checked: {self.fault}"
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
            "id": self.suite_version_id or self.heldout_id,
            "by_method": {method: self.counts[method] for method in METHODS if method in self.counts},
            "fault": self.fault,
        }


class LaunchOverlap(models.Model):
    """What was known of the overlaps of a run's data when it was launched. Written once."""

    run = models.OneToOneField(Run, on_delete=models.CASCADE, related_name="launch_overlap")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT)
    at = models.DateTimeField(auto_now_add=True)
    pairs = models.JSONField()
    """[{with, kind, id, state, items, touched, same_but_numbers, by_method}], as `selectors.figures`."""
    acknowledged = models.BooleanField()
    """Items were found, and the person ticked that they had seen it."""

    def __str__(self) -> str:
        return f"overlaps known at the launch of {self.run}"
