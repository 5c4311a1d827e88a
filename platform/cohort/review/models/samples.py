"""Sampled groups, their completions, and what is stored of each completion besides."""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models

from cohort.catalog.models import PromptDataset
from cohort.runs.models import Attempt, Run, SentFile
from grpo_core.data.rejection import FILTERS, KEPT, described


class Group(models.Model):
    """G completions of one problem at one step."""

    # The constraint and the index below begin with them; so no index of each alone.
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="groups", db_index=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="groups", db_index=False)
    seq = models.BigIntegerField()
    step = models.PositiveIntegerField()
    index = models.PositiveIntegerField()
    problem_id = models.CharField(max_length=200)
    prompt = models.TextField()
    answer = models.TextField()
    reward_mean = models.FloatField(null=True)
    reward_std = models.FloatField(null=True)
    signal = models.CharField(max_length=10)
    discarded = models.CharField(max_length=12, blank=True, default="")
    """Why dynamic sampling left the group out of training (records.Discard); empty when it was trained on."""
    sampled_at = models.PositiveIntegerField(null=True)
    """Step whose policy sampled the group, when that is an earlier one."""

    class Meta:
        ordering: ClassVar = ["run", "-step", "index"]
        indexes: ClassVar = [models.Index(fields=["run", "step", "index"], name="group_by_step")]
        constraints: ClassVar = [models.UniqueConstraint(fields=["attempt", "seq"], name="group_seq_once")]

    def __str__(self) -> str:
        return f"group {self.index} of step {self.step}"


class Sample(models.Model):
    """One completion with its reward."""

    group = models.ForeignKey(Group, on_delete=models.CASCADE, related_name="samples", db_index=False)
    # Of its group, so that one index answers for all samples of a run; the group's own constraints hold for them.
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="samples", db_index=False, db_constraint=False)
    attempt = models.ForeignKey(
        Attempt, on_delete=models.CASCADE, related_name="samples", db_index=False, db_constraint=False
    )
    step = models.PositiveIntegerField()
    index = models.PositiveIntegerField()
    completion = models.TextField()
    tokens = models.PositiveIntegerField(null=True)
    """Null only where an imported file does not state it, as is the advantage."""
    finish_reason = models.CharField(max_length=10, blank=True)
    """Empty where an imported file does not state it."""
    reward = models.FloatField(null=True)
    components = models.JSONField(default=dict)
    """{component name: records.ComponentScore}"""
    component_values = ArrayField(models.FloatField(null=True), default=list)
    """Value of each component, in the order of `review.facets.component_order`; null where it has none."""
    facets = models.IntegerField(default=0)
    """What has few values, in bits: `review.facets` says which."""
    clipped = models.FloatField(null=True)
    """Share of its tokens whose ratio was clipped; null where nothing can be."""
    shaped_reward = models.FloatField(null=True)
    """The reward as its group compared it, after a KL penalty on it; null where that is the reward itself."""
    advantage = models.FloatField(null=True)
    mask_cause = models.CharField(max_length=20, blank=True)
    logprob_mean = models.FloatField(null=True)
    salt = models.CharField(max_length=32, blank=True, default="")
    """Hex, of its leaf in the step's commitments; empty where its trainer made none, and once it was redacted."""
    tokens_sha256 = models.CharField(max_length=64, blank=True, default="")
    """Digest of its row in the step's token arrays; empty where none was stored."""
    redacted_at = models.DateTimeField(null=True)
    """When text and salt were deleted; the leaf stays."""

    class Meta:
        ordering: ClassVar = ["group", "index"]
        indexes: ClassVar = [
            # Filters, orders and facets over a run are answered from it alone, without a look at the texts' pages.
            models.Index(
                fields=["run", "step"],
                include=["id", "attempt", *("reward", "advantage", "tokens", "facets", "component_values", "clipped")],
                name="sample_by_step",
            ),
            models.Index(fields=["redacted_at"], condition=models.Q(redacted_at__isnull=False), name="sample_redacted"),
        ]
        constraints: ClassVar = [models.UniqueConstraint(fields=["group", "index"], name="sample_once_per_group")]

    def __str__(self) -> str:
        return f"sample {self.index} of {self.group}"

    @property
    def compared_reward(self) -> float | None:
        """What advantages were made from."""
        return self.reward if self.shaped_reward is None else self.shaped_reward


class SampleWords(models.Model):
    """Which words a sample's completion has, for the full-text search (`cohort.review.words`). A row is made in the
    background, and deleted with the text."""

    # Without a constraint: its check would write to every sample's row, the largest table there is, once more.
    sample = models.OneToOneField(
        Sample, on_delete=models.CASCADE, primary_key=True, related_name="words", db_constraint=False
    )
    words = ArrayField(models.BigIntegerField())
    """Of each distinct word its hash, which is not negative; and minus the run's id, so that the index finds the words
    of one run."""

    class Meta:
        indexes: ClassVar = [GinIndex(fields=["words"], name="sample_by_word")]

    def __str__(self) -> str:
        return f"words of sample {self.sample_id}"


class WordsPosition(models.Model):
    """How far the words of an attempt's samples are indexed."""

    attempt = models.OneToOneField(Attempt, on_delete=models.CASCADE, primary_key=True, related_name="words_position")
    seq = models.BigIntegerField()
    """Of the attempt's records: samples up to it are indexed."""

    def __str__(self) -> str:
        return f"{self.attempt} to record {self.seq}"


class StepCommitments(models.Model):
    """A salted hash of every completion of a step, kept or not; `grpo_core.records.commitments` defines it."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="commitments", db_index=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="commitments", db_index=False)
    seq = models.BigIntegerField()
    step = models.PositiveIntegerField()
    count = models.PositiveIntegerField()
    leaves = models.BinaryField()
    """count × 32 bytes."""

    class Meta:
        ordering: ClassVar = ["run", "attempt", "step"]
        indexes: ClassVar = [models.Index(fields=["run", "attempt", "step"], name="commitments_by_step")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["attempt", "seq"], name="commitments_seq_once"),
            models.UniqueConstraint(fields=["attempt", "step"], name="commitments_once_per_step"),
        ]

    def __str__(self) -> str:
        return f"{self.count} commitments of step {self.step}"


class TokenFile(SentFile):
    """The token arrays of a step's samples, as the attempt announced them; `review.token_files` keeps what came."""

    FOLDER = "tokens/run-{file.run_id}/parts-{file.pk}"

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="token_files", db_index=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="token_files")
    seq = models.BigIntegerField()
    step = models.PositiveIntegerField()
    samples = models.JSONField()
    """[group, sample] of each row, as announced."""
    held = models.JSONField(default=list)
    """The same of the rows in `artifact`, in their order: all announced but those that were deleted."""
    artifact = models.CharField(max_length=200, blank=True, default="")
    """Key of the file as the platform wrote it; empty until it came, and where it holds no row."""
    fault = models.CharField(max_length=500, blank=True, default="")
    """Why nothing of what came is kept."""

    class Meta:
        ordering: ClassVar = ["run", "attempt", "step"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["attempt", "seq"], name="token_file_seq_once"),
            models.UniqueConstraint(fields=["attempt", "step"], name="token_file_once_per_step"),
        ]

    def __str__(self) -> str:
        return f"token arrays of step {self.step}"


class DatasetFile(SentFile):
    """The dataset of a run of kind `sample`, as the attempt announced it; `review.sampled_datasets` makes a dataset of
    the project's catalog of what came."""

    FOLDER = "sampled/run-{file.run_id}/parts-{file.pk}"

    attempt = models.OneToOneField(Attempt, on_delete=models.CASCADE, related_name="dataset_file")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="dataset_files")
    seq = models.BigIntegerField()
    content = models.CharField(max_length=16)
    rows = models.PositiveIntegerField()
    counts = models.JSONField()
    """Completions by what became of them: `kept`, or the filter that dropped them."""
    dataset = models.ForeignKey(PromptDataset, on_delete=models.PROTECT, null=True, related_name="files")
    """What was made of it; null until it came whole, and where `fault` says why not."""
    fault = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        ordering: ClassVar = ["run", "attempt"]

    def __str__(self) -> str:
        return f"dataset of {self.run}"

    @property
    def completions(self) -> int:
        """All that were sampled."""
        return sum(self.counts.values())

    @property
    def became(self) -> list[tuple[str, int]]:
        """(what became of them in words, completions), in the order of the filters."""
        return [(described(name), count) for name, count in sorted(self.counts.items(), key=_place)]


def _place(count: tuple[str, int]) -> int:
    """JSON of the database has an order of its own."""
    names = [KEPT, *FILTERS]
    return names.index(count[0]) if count[0] in names else len(names)
