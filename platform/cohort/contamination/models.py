"""What was found of evaluation items in training problems, and what was known of it when a run was launched."""

from typing import ClassVar

from django.conf import settings
from django.db import models

from cohort.catalog.models import EvalSuiteVersion, PromptDataset
from cohort.runs.models import Run


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
