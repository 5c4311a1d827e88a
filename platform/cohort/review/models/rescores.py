"""Stored samples scored again by another reward."""

from typing import ClassVar

from django.conf import settings
from django.db import models

from cohort.catalog.models import VerifierVersion
from cohort.lab.models import LabJob
from cohort.review.models.samples import Sample
from cohort.runs.models import Run


class Rescore(models.Model):
    """A run's stored samples scored again, by a version of a reward, once the run had ended."""

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="rescores")
    version = models.ForeignKey(VerifierVersion, on_delete=models.PROTECT, related_name="rescores")
    job = models.OneToOneField(LabJob, on_delete=models.PROTECT, related_name="rescore")
    reason = models.CharField(max_length=2000, blank=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)
    newest_group = models.BigIntegerField()
    """Id of the run's newest group when it was requested; what the run samples later is not scored."""
    samples = models.PositiveIntegerField()
    """Of those groups, with texts that were stored then."""

    done = models.PositiveIntegerField(default=0)
    """Samples whose scores are stored."""
    begun_with = models.PositiveIntegerField(default=0)
    """How many that were when its worker began."""
    acked_group = models.BigIntegerField(null=True)
    """Id of the last group whose scores are stored."""
    errors = models.JSONField(default=dict)
    """{class: {count, example}} of samples without a score; example: the first one's message."""
    figures = models.JSONField(null=True)
    """cohort.review.rescore_figures, once all is scored; null until then."""

    class Meta:
        ordering: ClassVar = ["-pk"]

    def __str__(self) -> str:
        return f"re-score {self.pk} of {self.run} by {self.version}"


class Change(models.IntegerChoices):
    """What a second reward makes of a sample's reward."""

    SAME = 0, "the same"
    LOWER = 1, "lower"
    HIGHER = 2, "higher"
    UNSCORED = 3, "not scored"
    """By one of the two."""


class RescoredSample(models.Model):
    """What a re-score made of one sample. The database refuses to change or delete a row."""

    rescore = models.ForeignKey(Rescore, on_delete=models.PROTECT, related_name="rows", db_index=False)
    sample = models.ForeignKey(Sample, on_delete=models.PROTECT, related_name="rescored", db_index=False)
    value = models.FloatField(null=True)
    """The reward; null where it could not be computed."""
    passed = models.BooleanField(null=True)
    error_class = models.CharField(max_length=12, blank=True)
    """protocol.messages.RescoreError."""
    phantom = models.BooleanField()
    """Only shaping varies in its group."""
    change = models.PositiveSmallIntegerField(choices=Change.choices)
    differs = models.BooleanField()
    """One of the two calls it right and the other wrong."""

    class Meta:
        ordering: ClassVar = ["rescore", "sample"]
        indexes: ClassVar = [
            models.Index(fields=["rescore", "change"], name="rescored_by_change"),
            models.Index(fields=["rescore", "sample"], condition=models.Q(differs=True), name="rescored_differing"),
        ]
        constraints: ClassVar = [models.UniqueConstraint(fields=["rescore", "sample"], name="rescored_once")]

    def __str__(self) -> str:
        return f"{self.sample} by {self.rescore}: {self.value}"
