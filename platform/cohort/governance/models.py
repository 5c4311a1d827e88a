"""The governance records of a run: one is sealed at each end of it and never changed. A run that a person retries or
extends after its end gets another at the next end; the earlier ones stay."""

from typing import ClassVar

from django.db import models

from cohort.runs.models import Run


class Record(models.Model):
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="records")
    end = models.PositiveIntegerField()
    """Which of the run's ends this is of: `Run.ends` when it was sealed. An end may come without a new attempt."""
    fence = models.PositiveIntegerField()
    """Number of the run's newest attempt when it was sealed: the record is of everything up to that one."""
    schema_version = models.CharField(max_length=40)
    document = models.TextField()
    """record.json exactly as sealed: RFC 8785 canonical bytes."""
    digest = models.CharField(max_length=64)
    """SHA-256 of the record itself. The seal, which people compare, stands in the document."""
    card_artifact = models.CharField(max_length=200)
    """Key of the card zip in the artifact store."""
    card_sha256 = models.CharField(max_length=64)
    card_size = models.BigIntegerField()
    fields_stated = models.PositiveIntegerField()
    fields_total = models.PositiveIntegerField()
    sealed_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["-sealed_at"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["run", "end"], name="one_record_per_end")]

    def __str__(self) -> str:
        return f"record of {self.run}"
