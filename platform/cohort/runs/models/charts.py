"""Charts that a project adds to those of every run."""

from typing import ClassVar

from django.conf import settings
from django.db import models

from cohort.accounts.models import Project


class ProjectChart(models.Model):
    """Drawn on the page of each run of the project that reports one of its metrics."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="charts", db_index=False)
    title = models.CharField(max_length=80)
    metrics = models.JSONField()
    """Names of metrics, in the order of their lines."""
    log = models.BooleanField(default=False)
    """Its vertical axis is logarithmic."""
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["project", "id"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["project", "title"], name="chart_title_once")]

    def __str__(self) -> str:
        return self.title
