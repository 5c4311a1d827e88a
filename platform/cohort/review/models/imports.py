"""Where the samples of an imported run came from, as it was when they were imported. Only added to."""

from typing import ClassVar

from django.conf import settings
from django.db import models

from cohort.runs.models import Run


class RunImport(models.Model):
    """The files that a run was imported from, what they state and what of them was left out."""

    class Format(models.TextChoices):
        TRL = "trl", "Completions of TRL (Parquet)"
        VERL = "verl", "Rollouts of verl (JSON lines)"
        INSPECT = "inspect", "Log of Inspect (.eval or .json)"

    run = models.OneToOneField(Run, on_delete=models.CASCADE, related_name="imported_from")
    format = models.CharField(max_length=10, choices=Format.choices)
    files = models.JSONField()
    """[{name, sha256, bytes}] in the order in which they were read."""
    steps = models.PositiveIntegerField()
    groups = models.PositiveIntegerField()
    samples = models.PositiveIntegerField()
    facts = models.JSONField(default=dict)
    """What the files state of the run besides samples: model, task, versions."""
    reward_rule = models.TextField()
    """How the reward was made of the columns, and which values count as right, in words."""
    not_stated = models.JSONField(default=list)
    """Columns of samples that the format does not state."""
    left_out = models.JSONField(default=dict)
    """{what: how many} that the files hold and the run does not."""
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="run_imports")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["pk"]

    def __str__(self) -> str:
        return f"import of {self.run_id}"
