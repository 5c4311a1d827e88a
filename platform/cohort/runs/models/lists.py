"""What the list of runs is searched and sorted by, and how people keep a way to look at it."""

from typing import ClassVar

from django.conf import settings
from django.db import models

from cohort.accounts.models import Project
from cohort.runs.models.run import Run


class RunValue(models.Model):
    """One setting of a run's config, or its score on one suite, so that runs are found by it through an index.

    Written with the config, with evaluations and with the verdicts of a record (`cohort.runs.run_values`), never by
    hand; it may be made anew from them at any time. What changes with every step, the newest metrics, stays in
    `Run.latest_metrics`: to read it of 10,000 runs takes 15 ms, and of their configs, which PostgreSQL keeps
    compressed, 150.
    """

    # The index and the constraint below begin with them; so no index of each alone.
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="values", db_index=False)
    key = models.TextField(db_collation="C")
    """The setting's path, as algorithm.kl.coef; `variant`; `evaluation.<newest, before or after>.<suite>`; or
    `evaluation.verdict.<suite>`. Compared by its bytes, so that all that begin alike are read through the index."""
    number = models.FloatField(null=True)
    """Of a score: the share that is right, 0 to 1."""
    text = models.TextField(blank=True)
    """Of what is no number; true and false of what is neither."""

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["run", "key"], name="run_value_once")]
        indexes: ClassVar = [
            models.Index(fields=["project", "key", "number"], include=["run"], name="run_value_by_number")
        ]

    def __str__(self) -> str:
        return f"{self.key} of run {self.run_id}"


class SavedView(models.Model):
    """A search of the list of runs with its columns and order, or a filter of a run's samples, under a name: its
    owner's, or shared with the project.

    The one that is its owner's default opens with the list.
    """

    class Page(models.TextChoices):
        RUNS = "runs"
        SAMPLES = "samples"

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="saved_views")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    page = models.CharField(max_length=7, choices=Page.choices, default=Page.RUNS)
    name = models.CharField(max_length=60)
    query = models.CharField(max_length=4000)
    """That of the page's address: q, columns, sort; or the filter's."""
    shared = models.BooleanField(default=False)
    default = models.BooleanField(default=False)

    class Meta:
        ordering: ClassVar = ["name", "id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "owner", "page", "name"], name="saved_view_name_once"),
            models.UniqueConstraint(
                fields=["project", "owner", "page"], condition=models.Q(default=True), name="saved_view_one_default"
            ),
        ]

    def __str__(self) -> str:
        return self.name
