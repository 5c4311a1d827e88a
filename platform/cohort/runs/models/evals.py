"""Held-out problems before and after: totals, and every item so that anyone can recompute them."""

from typing import ClassVar

from django.db import models

from cohort.runs.models.run import Attempt, Run


class EvalResult(models.Model):
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="eval_results")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="eval_results")
    seq = models.BigIntegerField()
    at = models.DateTimeField()
    phase = models.CharField(max_length=10)
    suite = models.CharField(max_length=80)
    problems = models.PositiveIntegerField()
    correct = models.FloatField()
    truncated = models.PositiveIntegerField()
    errors = models.PositiveIntegerField()
    mean_tokens = models.FloatField()
    seconds = models.FloatField()
    protocol = models.JSONField()

    class Meta:
        ordering: ClassVar = ["run", "suite", "id"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["attempt", "seq"], name="eval_result_seq_once")]

    def __str__(self) -> str:
        return f"{self.suite} {self.phase}: {self.correct} of {self.problems}"


class EvalItem(models.Model):
    # The constraint and the index below begin with them; so no index of each alone.
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="eval_items", db_index=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="eval_items", db_index=False)
    seq = models.BigIntegerField()
    phase = models.CharField(max_length=10)
    suite = models.CharField(max_length=80)
    problem_id = models.CharField(max_length=200)
    prompt = models.TextField()
    answer = models.TextField()
    completion = models.TextField()
    score = models.FloatField()
    truncated = models.BooleanField()
    error = models.TextField(blank=True)
    tokens = models.PositiveIntegerField()
    detail = models.TextField(blank=True)

    class Meta:
        ordering: ClassVar = ["run", "suite", "seq"]
        indexes: ClassVar = [models.Index(fields=["run", "suite", "phase"], name="eval_item_by_suite")]
        constraints: ClassVar = [models.UniqueConstraint(fields=["attempt", "seq"], name="eval_item_seq_once")]

    def __str__(self) -> str:
        return f"{self.problem_id} {self.phase}: {self.score}"
