"""What grows with the length of a run: one row a step, one a checkpoint."""

from typing import ClassVar

from django.db import models

from cohort.runs.models.run import Attempt, Run


class StepMetric(models.Model):
    """All numbers of one step in one row."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="steps")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="steps")
    seq = models.BigIntegerField()
    step = models.PositiveIntegerField()
    at = models.DateTimeField()
    metrics = models.JSONField()
    seconds = models.JSONField(default=dict)

    class Meta:
        ordering: ClassVar = ["run", "step"]
        indexes: ClassVar = [models.Index(fields=["run", "step"], name="step_by_run")]
        constraints: ClassVar = [models.UniqueConstraint(fields=["attempt", "seq"], name="step_seq_once")]

    def __str__(self) -> str:
        return f"step {self.step} of {self.run}"


class Checkpoint(models.Model):
    """Weights on a node's disk, with the digest of every file."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="checkpoints")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="checkpoints")
    seq = models.BigIntegerField()
    step = models.PositiveIntegerField()
    at = models.DateTimeField()
    path = models.CharField(max_length=500)
    files = models.JSONField()
    final = models.BooleanField(default=False)

    class Meta:
        ordering: ClassVar = ["run", "step"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["attempt", "seq"], name="checkpoint_seq_once")]

    def __str__(self) -> str:
        return f"checkpoint at step {self.step} of {self.run}"
