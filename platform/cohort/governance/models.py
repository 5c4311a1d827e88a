"""The governance record of a run, sealed once and never changed."""

from typing import ClassVar

from django.db import models

from cohort.runs.models import Run


class Record(models.Model):
    run = models.OneToOneField(Run, on_delete=models.PROTECT, related_name="record")
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

    def __str__(self) -> str:
        return f"record of {self.run}"
