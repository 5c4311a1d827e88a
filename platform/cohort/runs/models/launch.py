"""What a person has typed into the run form and not launched yet, and runs that were launched together."""

from typing import ClassVar

from django.conf import settings
from django.db import models

from cohort.accounts.models import Project


class LaunchDraft(models.Model):
    """The texts of one run form, saved while it is filled in. No run, and seen by its person alone."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="launch_drafts")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="launch_drafts")
    form_token = models.CharField(max_length=16)
    """Of the form as it was opened; the run that it launches has the same."""
    texts = models.JSONField()
    """Input's name → text."""
    revision = models.PositiveIntegerField(default=0)
    window = models.CharField(max_length=16, blank=True)
    """The browser window that saved it last."""
    saved_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar = ["-saved_at", "-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "user", "form_token"], name="launch_draft_once"),
        ]

    def __str__(self) -> str:
        return str(self.texts.get("name", ""))


class Sweep(models.Model):
    """A named set of runs that differ in some fields and were launched together."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="sweeps")
    name = models.CharField(max_length=120)
    fields = models.JSONField()
    """Field's path → the values that were given for it, as texts."""
    zipped = models.BooleanField(default=False)
    """First values with first ones, and so on; else every combination."""
    form_token = models.CharField(max_length=16, blank=True, default="")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="sweeps")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return self.name
