"""What people think of samples and answers, and the queues in which they judge."""

from collections.abc import Sequence
from typing import ClassVar

from django.conf import settings
from django.db import models

from cohort.accounts.models import Project
from cohort.lab.models import ChatAnswer
from cohort.review.models.samples import Sample
from cohort.runs.models import Run


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
    """When the person gave up the blindness of the queue; the same for all of its items."""

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
    """Whether what the blind queue hides was open to the person before the judgement."""
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
