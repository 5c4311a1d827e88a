"""Sampled groups and their completions, and answers of a chat, as people and other rewards review them."""

from collections.abc import Sequence
from typing import ClassVar

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models

from cohort.accounts.models import Project
from cohort.catalog.models import VerifierVersion
from cohort.lab.models import ChatAnswer, LabJob
from cohort.runs.models import Attempt, Run, SentFile


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
    tokens = models.PositiveIntegerField()
    finish_reason = models.CharField(max_length=10)
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
    advantage = models.FloatField()
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

    @property
    def folder(self) -> str:
        return f"tokens/run-{self.run_id}/parts-{self.pk}"


class Verdict(models.TextChoices):
    RIGHT = "right", "Right"
    WRONG = "wrong", "Wrong"
    UNSURE = "unsure", "Unsure"


class ReviewLabel(models.Model):
    """A label that a project's reviewers made for themselves, next to those of `labels.BUILT_IN`."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="review_labels")
    key = models.CharField(max_length=40)
    """What annotations hold, made of the word; a label that is added again has the key that it had."""
    letter = models.CharField(max_length=1)
    word = models.CharField(max_length=40)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    removed_at = models.DateTimeField(null=True)
    """When it was no longer offered; judgements that have it keep it."""

    class Meta:
        ordering: ClassVar = ["project", "letter"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "key"], name="review_label_once"),
            models.UniqueConstraint(
                fields=["project", "letter"], condition=models.Q(removed_at=None), name="review_label_letter_once"
            ),
        ]

    def __str__(self) -> str:
        return self.word


class QueueOrder(models.TextChoices):
    INFORMATIVE = "informative", "Most informative first"
    FILTER = "filter", "As the filter sorts"
    RANDOM = "random", "Random"


class ReviewQueue(models.Model):
    """Samples of a run that people are to judge, chosen once by a filter."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="review_queues")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="review_queues")
    name = models.CharField(max_length=120)
    query = models.TextField(blank=True)
    """Of the filter, as `SampleFilter.query` writes it."""
    order = models.CharField(max_length=12, choices=QueueOrder.choices, blank=True)
    """Empty: the samples are those on which the reviewers of `source` differ."""
    seed = models.PositiveIntegerField(null=True)
    """Of a random order."""
    source = models.ForeignKey("self", on_delete=models.CASCADE, null=True, related_name="+")
    blind = models.BooleanField()
    """Whether those who judge see neither what the verifier did nor what others think."""
    reviewers = models.PositiveSmallIntegerField()
    """How many people judge each sample: 1 or 2."""
    assignees = models.ManyToManyField(settings.AUTH_USER_MODEL, related_name="+")
    """Who judges; without any, every member whose role reaches."""
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    done_at = models.DateTimeField(null=True)
    """When its last judgement was given; null again once that is undone."""

    class Meta:
        ordering: ClassVar = ["project", "-pk"]

    def __str__(self) -> str:
        return self.name


class ReviewItem(models.Model):
    """A sample of a queue. Only added, with the queue."""

    queue = models.ForeignKey(ReviewQueue, on_delete=models.PROTECT, related_name="items", db_index=False)
    sample = models.ForeignKey(Sample, on_delete=models.PROTECT, related_name="review_items")
    number = models.PositiveIntegerField()
    """Counted from 1."""

    class Meta:
        ordering: ClassVar = ["queue", "number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["queue", "number"], name="review_item_number_once"),
            models.UniqueConstraint(fields=["queue", "sample"], name="review_item_sample_once"),
        ]

    def __str__(self) -> str:
        return f"{self.number} of {self.queue}"


class ReviewClaim(models.Model):
    """That an item is shown to a person, so that nobody else is given it meanwhile."""

    item = models.ForeignKey(ReviewItem, on_delete=models.CASCADE, related_name="claims", db_index=False)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    shown_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    """By the database's clock, as all of these."""
    unblinded_at = models.DateTimeField(null=True)
    """When the person had what a blind queue hides shown to them."""

    class Meta:
        ordering: ClassVar = ["item", "by"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["item", "by"], name="review_claim_once")]

    def __str__(self) -> str:
        return f"{self.item}, shown to {self.by}"


class Annotation(models.Model):
    """All that a person thinks of a sample, whatever the verifier does. Only added to: a person's newest counts."""

    sample = models.ForeignKey(Sample, on_delete=models.PROTECT, related_name="annotations")
    verdict = models.CharField(max_length=6, choices=Verdict.choices, blank=True)
    """Empty: not judged, there are labels or a note alone, or all was undone."""
    labels = models.JSONField(default=list)
    """Keys, sorted."""
    note = models.CharField(max_length=2000, blank=True)
    queue = models.ForeignKey(ReviewQueue, on_delete=models.PROTECT, null=True, related_name="annotations")
    """In which it was given; null for one on a group's page."""
    seconds = models.FloatField(null=True)
    """From the sample's being shown in the queue to the verdict; null where that is not known."""
    unblinded = models.BooleanField(default=False)
    """Whether the person had seen, before the judgement, what the blind queue hides."""
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)
    label_words: Sequence[str] = ()
    """Of the labels, set by what shows it."""

    class Meta:
        ordering: ClassVar = ["sample", "-pk"]

    def __str__(self) -> str:
        return f"{self.by} judged {self.sample}: {self.verdict or 'nothing'}"


class AnswerJudgement(models.Model):
    """A person's judgement of an answer in a chat. Only added to: a reviewer's newest counts."""

    answer = models.ForeignKey(ChatAnswer, on_delete=models.PROTECT, related_name="judgements")
    verdict = models.CharField(max_length=6, choices=Verdict.choices, blank=True)
    """Empty: there is a note alone."""
    note = models.CharField(max_length=2000, blank=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["answer", "-pk"]

    def __str__(self) -> str:
        return f"{self.by} judged {self.answer}: {self.verdict}"


class PairVote(models.Model):
    """Which of two samples of a group a person thinks better, without their rewards. Only added to: a person's newest
    vote on a pair counts."""

    class Choice(models.TextChoices):
        LEFT = "left", "Left is better"
        EQUAL = "equal", "Equal"
        RIGHT = "right", "Right is better"

    left = models.ForeignKey(Sample, on_delete=models.PROTECT, related_name="+")
    right = models.ForeignKey(Sample, on_delete=models.PROTECT, related_name="+", db_index=False)
    choice = models.CharField(max_length=5, choices=Choice.choices)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["left", "-pk"]

    def __str__(self) -> str:
        return f"{self.by}: {self.left} against {self.right}: {self.choice}"


class Rescore(models.Model):
    """A run's stored samples scored again, by a version of a reward, once the run had ended."""

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="rescores")
    version = models.ForeignKey(VerifierVersion, on_delete=models.PROTECT, related_name="rescores")
    job = models.OneToOneField(LabJob, on_delete=models.PROTECT, related_name="rescore")
    reason = models.CharField(max_length=2000, blank=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)
    newest_group = models.BigIntegerField()
    """Id of the run's newest group when it was requested; what the run samples later is not scored."""
    samples = models.PositiveIntegerField()
    """Of those groups, with texts that were stored then."""

    done = models.PositiveIntegerField(default=0)
    """Samples whose scores are stored."""
    begun_with = models.PositiveIntegerField(default=0)
    """How many that were when its worker began."""
    acked_group = models.BigIntegerField(null=True)
    """Id of the last group whose scores are stored."""
    errors = models.JSONField(default=dict)
    """{class: {count, example}} of samples without a score; example: the first one's message."""
    figures = models.JSONField(null=True)
    """cohort.review.rescore_figures, once all is scored; null until then."""

    class Meta:
        ordering: ClassVar = ["-pk"]

    def __str__(self) -> str:
        return f"re-score {self.pk} of {self.run} by {self.version}"


class Change(models.IntegerChoices):
    """What a second reward makes of a sample's reward."""

    SAME = 0, "the same"
    LOWER = 1, "lower"
    HIGHER = 2, "higher"
    UNSCORED = 3, "not scored"
    """By one of the two."""


class RescoredSample(models.Model):
    """What a re-score made of one sample. The database refuses to change or delete a row."""

    rescore = models.ForeignKey(Rescore, on_delete=models.PROTECT, related_name="rows", db_index=False)
    sample = models.ForeignKey(Sample, on_delete=models.PROTECT, related_name="rescored", db_index=False)
    value = models.FloatField(null=True)
    """The reward; null where it could not be computed."""
    passed = models.BooleanField(null=True)
    error_class = models.CharField(max_length=12, blank=True)
    """protocol.messages.RescoreError."""
    phantom = models.BooleanField()
    """Only shaping varies in its group."""
    change = models.PositiveSmallIntegerField(choices=Change.choices)
    differs = models.BooleanField()
    """One of the two calls it right and the other wrong."""

    class Meta:
        ordering: ClassVar = ["rescore", "sample"]
        indexes: ClassVar = [
            models.Index(fields=["rescore", "change"], name="rescored_by_change"),
            models.Index(fields=["rescore", "sample"], condition=models.Q(differs=True), name="rescored_differing"),
        ]
        constraints: ClassVar = [models.UniqueConstraint(fields=["rescore", "sample"], name="rescored_once")]

    def __str__(self) -> str:
        return f"{self.sample} by {self.rescore}: {self.value}"
