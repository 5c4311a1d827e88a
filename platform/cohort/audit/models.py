"""The audit log: entries as canonical bytes, their indices in a Merkle tree, signed heads of that tree, keys.

Entry, leaf, checkpoint, key and cosignature are only added to; PostgreSQL refuses anything else by trigger
(migrations/append_only.py). The owner of the database can drop triggers; a change is then detected by the tree
together with any checkpoint that somebody else has kept.
"""

from typing import ClassVar

from django.db import models


class AuditEntry(models.Model):
    """One change, sign-in or download. `body` is what counts; the other columns repeat parts of it for searching."""

    at = models.DateTimeField()
    """By the database's clock."""
    actor = models.CharField(max_length=160)
    """user:<name>, node:<name>, trainer, platform or anonymous."""
    kind = models.CharField(max_length=60)
    subject = models.CharField(max_length=200)
    """run:12, user:ada, dataset:4 …"""
    project = models.SlugField(max_length=60, blank=True, db_index=False)
    """Slug; empty for what belongs to no project."""
    body = models.BinaryField()
    """RFC 8785 bytes of {"actor", "after", "at", "before", "data", "kind", "nonce", "project", "reason", "subject"}."""

    class Meta:
        ordering: ClassVar = ["id"]
        indexes: ClassVar = [
            models.Index(fields=["project", "-id"], name="audit_by_project"),
            models.Index(fields=["kind", "-id"], name="audit_by_kind"),
            models.Index(fields=["subject", "-id"], name="audit_by_subject"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.subject} by {self.actor}"


class AuditPending(models.Model):
    """An entry that has no index in the tree yet. A trigger of the database adds the row with the entry."""

    entry = models.OneToOneField(AuditEntry, on_delete=models.PROTECT, primary_key=True, related_name="pending")

    def __str__(self) -> str:
        return f"entry {self.entry_id} waits for its index"


class AuditLeaf(models.Model):
    """The entry's index in the tree. Indices begin at 0 and have no gaps."""

    idx = models.BigIntegerField(primary_key=True)
    entry = models.OneToOneField(AuditEntry, on_delete=models.PROTECT, related_name="leaf")
    leaf = models.BinaryField()
    """SHA-256(0x00 ‖ body), 32 bytes (RFC 6962)."""

    class Meta:
        ordering: ClassVar = ["idx"]

    def __str__(self) -> str:
        return f"leaf {self.idx}"


class TreeHead(models.Model):
    """How large the tree is and what is needed to continue; one row, whose lock serialises the numbering."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    size = models.BigIntegerField(default=0)
    peaks = models.BinaryField(default=b"")
    """Hashes of the complete subtrees that `size` leaves fall into, the largest first, 32 bytes each."""

    class Meta:
        constraints: ClassVar = [models.CheckConstraint(condition=models.Q(id=1), name="audit_one_head")]

    def __str__(self) -> str:
        return f"tree of {self.size}"


class LogKey(models.Model):
    """A public key of the log, in order of use. The private ones are in no database."""

    vkey = models.CharField(max_length=300, unique=True)
    """name+hash+base64, as c2sp.org/signed-note has it."""
    since_size = models.BigIntegerField()
    """Checkpoints of more leaves than this are signed by this key, until the next one's `since_size`."""
    at = models.DateTimeField()
    rotation = models.TextField(blank=True)
    """The statement, signed by the key before, that this one follows it; empty for the first."""

    class Meta:
        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return self.vkey


class LogCheckpoint(models.Model):
    """A signed head of the tree (c2sp.org/tlog-checkpoint)."""

    size = models.BigIntegerField(unique=True)
    note = models.TextField()
    key = models.ForeignKey(LogKey, on_delete=models.PROTECT, related_name="checkpoints")
    at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["size"]

    def __str__(self) -> str:
        return f"checkpoint of {self.size}"


class LogCosignature(models.Model):
    """A witness's signature that the checkpoint follows from the one before (c2sp.org/tlog-cosignature)."""

    checkpoint = models.ForeignKey(LogCheckpoint, on_delete=models.PROTECT, related_name="cosignatures")
    witness = models.CharField(max_length=300)
    """The witness's key, as name+hash+base64."""
    line = models.TextField()
    """The signature line, as the witness sent it."""
    at = models.DateTimeField()
    """The time of signing that the witness states."""

    class Meta:
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["checkpoint", "witness"], name="audit_one_cosignature_each")
        ]

    def __str__(self) -> str:
        return f"cosignature of {self.checkpoint} by {self.witness.split('+')[0]}"


class LogPush(models.Model):
    """The outcome of pushing the newest checkpoint to a target outside; one row a target. Not part of the log."""

    target = models.CharField(max_length=20, primary_key=True)
    """git or witness."""
    size = models.BigIntegerField(null=True)
    """Of the last checkpoint that arrived."""
    pushed_at = models.DateTimeField(null=True)
    failed_at = models.DateTimeField(null=True)
    """Of a failure after the last success."""
    error = models.TextField(blank=True)

    def __str__(self) -> str:
        return f"{self.target}: {self.error or self.size}"
