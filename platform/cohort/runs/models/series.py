"""What grows with the length of a run: one row a step, one a checkpoint, one a stretch of the log."""

from typing import ClassVar

from django.db import models

from cohort.runs.models.run import Attempt, Run


class StepMetric(models.Model):
    """All numbers of one step in one row."""

    # The constraint and the index below begin with attempt and run: an index of each alone would only cost writing.
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="steps", db_index=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="steps", db_index=False)
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
    """Plain weights, from which no run can resume."""
    best = models.BooleanField(default=False)
    pinned = models.BooleanField(default=False)
    """A person wants it kept."""
    seconds = models.FloatField(default=0.0)
    """What writing it took."""
    removed_at = models.DateTimeField(null=True)
    """When it was removed to make room for newer ones."""
    stored_at = models.DateTimeField(null=True)
    """When the platform had all of its files, so that any node can resume from it."""
    requested_at = models.DateTimeField(null=True)
    """When a person requested its files; null once they are here, or cannot come. Its node sends them."""

    class Meta:
        ordering: ClassVar = ["run", "step"]
        indexes: ClassVar = [
            models.Index(fields=["run", "step"], name="checkpoint_by_run"),
            models.Index(fields=["run"], condition=models.Q(best=True), name="checkpoint_best"),
            models.Index(fields=["run"], condition=models.Q(pinned=True), name="checkpoint_pinned"),
            models.Index(
                fields=["attempt"], condition=models.Q(requested_at__isnull=False), name="checkpoint_requested"
            ),
            models.Index(
                fields=["run", "step"],
                condition=models.Q(removed_at=None) | models.Q(stored_at__isnull=False),
                name="checkpoint_held",
            ),
        ]
        constraints: ClassVar = [models.UniqueConstraint(fields=["attempt", "seq"], name="checkpoint_seq_once")]

    def __str__(self) -> str:
        return f"checkpoint at step {self.step} of {self.run}"


class SentFile(models.Model):
    """A file that a worker sends in parts; `stored_files` takes them."""

    FOLDER: ClassVar[str]
    """Pattern of the folder's key, with the `file`."""

    sha256 = models.CharField(max_length=64)
    size = models.BigIntegerField()
    received = models.BigIntegerField(default=0)
    done_at = models.DateTimeField(null=True)

    class Meta:
        abstract = True

    @property
    def folder(self) -> str:
        """Key of the folder of its parts."""
        return self.FOLDER.format(file=self)


class CheckpointFile(SentFile):
    """A checkpoint's file that the platform holds, or is being sent, so that another node can resume from it."""

    FOLDER = "checkpoints/run-{file.run_id}/{file.sha256}"

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="checkpoint_files")

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["run", "sha256"], name="checkpoint_file_once")]

    def __str__(self) -> str:
        return f"{self.sha256[:12]} of {self.run}"


class Bucket(models.Model):
    """`width` steps of one attempt in one row, made when the last of them was stored: what a long chart draws."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="buckets", db_index=False)
    width = models.PositiveIntegerField()
    """16, 256, 4,096 …"""
    first_step = models.PositiveIntegerField()
    """The bucket holds the steps first_step … first_step + width − 1; first_step − 1 is a multiple of width."""
    metrics = models.JSONField()
    """{metric: [min, max, last, count]}; a metric that no step had is left out."""

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["attempt", "width", "first_step"], name="bucket_once")]

    def __str__(self) -> str:
        return f"steps {self.first_step}-{self.first_step + self.width - 1} of {self.attempt}"


class LogChunk(models.Model):
    """A stretch of what an attempt's trainer, and what it started, printed. Stretches lie end to end from byte 0."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="log_chunks", db_index=False)
    offset = models.PositiveBigIntegerField()
    """Of its first byte in the attempt's log."""
    data = models.BinaryField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["attempt", "offset"], name="log_chunk_once")]

    def __str__(self) -> str:
        return f"log of {self.attempt} from byte {self.offset}"
