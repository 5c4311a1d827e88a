"""A machine that runs attempts and jobs of the lab."""

from typing import ClassVar

from django.db import models


class Draining(models.TextChoices):
    NO = "", "Takes runs"
    FINISH = "finish", "Takes no new run; what runs here ends here"
    MOVE = "move", "Takes no new run; what runs here stops at a checkpoint and resumes elsewhere"


class Node(models.Model):
    """A machine that may run attempts. Its token is stored as a digest and shown once."""

    name = models.CharField(max_length=80, unique=True)
    token_digest = models.CharField(max_length=64, unique=True)
    next_token_digest = models.CharField(max_length=64, unique=True, null=True)  # noqa: DJ001
    """A token made to replace the other, which is refused from the first call with this one on."""
    draining = models.CharField(max_length=8, choices=Draining.choices, blank=True, default=Draining.NO)
    info = models.JSONField(default=dict)
    """wire.NodeInfo as last reported."""
    last_seen_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name


class Leased(models.Model):
    """Work that one worker has for a time: an attempt of a run, or a job of the lab. `cohort.nodes.leases` reads and
    writes these columns; a row is leased while its `state` is `running`."""

    token_digest = models.CharField(max_length=64, blank=True)
    """Of the token that the worker's calls carry."""
    claim_id = models.CharField(max_length=64, blank=True, default="")
    """Of the claim that it was given to, as the message has it."""
    heartbeat_at = models.DateTimeField(null=True)
    lease_until = models.DateTimeField(null=True)
    progress = models.JSONField(default=dict)
    """wire.Progress as last reported."""

    class Meta:
        abstract = True
