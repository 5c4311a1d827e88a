"""Evaluations before, while and after training: totals, and every item so that anyone can recompute them; results of
other tools."""

import math
from typing import ClassVar

from django.conf import settings
from django.db import models

from cohort.catalog.models import EvalSuiteVersion
from cohort.runs.models.run import Attempt, Run


class EvalTotals(models.Model):
    """What one evaluation of one suite came to."""

    suite = models.CharField(max_length=80)
    problems = models.PositiveIntegerField()
    correct = models.FloatField()
    truncated = models.PositiveIntegerField()
    errors = models.PositiveIntegerField()
    mean_tokens = models.FloatField()
    seconds = models.FloatField()
    protocol = models.JSONField()

    class Meta:
        abstract = True


class EvalAnswer(models.Model):
    """How one item of one evaluation was answered and scored."""

    problem_id = models.CharField(max_length=200)
    prompt = models.TextField()
    answer = models.TextField()
    completion = models.TextField()
    score = models.FloatField()
    truncated = models.BooleanField()
    error = models.TextField(blank=True)
    tokens = models.PositiveIntegerField()
    detail = models.TextField(blank=True)
    slice = models.CharField(max_length=200, blank=True, default="")
    """Part of the suite that the item belongs to, such as a language or a named attack."""
    cluster = models.CharField(max_length=200, blank=True, default="")
    """Items of one cluster are not independent of each other: the same problem in several languages."""

    class Meta:
        abstract = True


class EvalResult(EvalTotals):
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="eval_results")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="eval_results")
    seq = models.BigIntegerField()
    at = models.DateTimeField()
    phase = models.CharField(max_length=10)
    step = models.PositiveIntegerField(default=0)
    """Steps that the policy was trained for."""

    class Meta:
        ordering: ClassVar = ["run", "suite", "id"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["attempt", "seq"], name="eval_result_seq_once")]

    def __str__(self) -> str:
        return f"{self.suite} {self.phase}: {self.correct} of {self.problems}"


class EvalItem(EvalAnswer):
    """Of an evaluation while training the texts are empty: its scores are kept, for intervals."""

    # The constraint and the index below begin with them; so no index of each alone.
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="eval_items", db_index=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="eval_items", db_index=False)
    seq = models.BigIntegerField()
    phase = models.CharField(max_length=10)
    step = models.PositiveIntegerField(default=0)
    suite = models.CharField(max_length=80)

    class Meta:
        ordering: ClassVar = ["run", "suite", "seq"]
        indexes: ClassVar = [models.Index(fields=["run", "suite", "phase"], name="eval_item_by_suite")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["attempt", "seq"], name="eval_item_seq_once"),
            models.UniqueConstraint(fields=["attempt", "phase", "step", "suite", "problem_id"], name="eval_item_once"),
        ]

    def __str__(self) -> str:
        return f"{self.problem_id} {self.phase}: {self.score}"


class ComparisonCache(models.Model):
    """The statistics of a run's evaluations as they were last computed (`cohort.evaluations.selectors`). A row may be
    deleted at any time: they are computed again."""

    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="comparison_cache")
    key = models.CharField(max_length=64)
    """SHA-256 of all that went in."""
    comparisons = models.TextField()
    """JSON, as text: jsonb would change numbers, such as −0."""

    def __str__(self) -> str:
        return f"comparisons of run {self.run_id}"


class RunSuite(models.Model):
    """A suite version that a run is evaluated on. What the run decided of it (margin, limit) is in its config."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="run_suites")
    version = models.ForeignKey(EvalSuiteVersion, on_delete=models.PROTECT, related_name="run_suites")

    class Meta:
        ordering: ClassVar = ["run", "version__suite__name"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["run", "version"], name="run_suite_once")]

    def __str__(self) -> str:
        return f"{self.version} in {self.run}"


class ImportedResult(models.Model):
    """One number that another tool measured and somebody uploaded: shown next to the run's own, never mixed with them.
    The database refuses to change or delete a row."""

    class Tool(models.TextChoices):
        LM_EVAL = "lm-evaluation-harness", "lm-evaluation-harness"
        INSPECT = "inspect", "Inspect"

    class Phase(models.TextChoices):
        BEFORE = "before", "before training"
        AFTER = "after", "after training"
        NEITHER = "neither", "neither"

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="imported_results")
    tool = models.CharField(max_length=40, choices=Tool.choices)
    task = models.CharField(max_length=200)
    phase = models.CharField(max_length=10, choices=Phase.choices)
    """Which weights were measured, as the person who imported it states."""
    metric = models.CharField(max_length=200)
    value = models.FloatField()
    stderr = models.FloatField(null=True)
    n = models.PositiveIntegerField(null=True)
    """Items that the value is of; empty where the file does not state it."""
    higher_is = models.CharField(max_length=10, blank=True)
    """better or worse, as the file states; empty where it does not."""
    facts = models.JSONField(default=dict)
    """What the file states of itself, unchanged: versions, hashes, model, date, sampling limits."""
    file_name = models.CharField(max_length=200)
    file_sha256 = models.CharField(max_length=64)
    samples = models.JSONField(null=True)
    """{sha256, n, mean} of the samples file that came along: mean is of the same metric over its lines."""
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["run", "id"]

    def __str__(self) -> str:
        return f"{self.task} {self.metric} {self.phase}: {self.value}"

    @property
    def samples_agree(self) -> bool:
        """Whether the samples that came along give the stated value, to a millionth."""
        mean = (self.samples or {}).get("mean")
        return mean is not None and math.isclose(mean, self.value, rel_tol=1e-6, abs_tol=1e-6)
