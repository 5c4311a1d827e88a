"""Rows of a run: the run and its attempts on nodes, with the append-only history of both; what grows with its length;
evaluations before and after, every item of them so that anyone can recompute the totals, and results of other tools."""

import math
from functools import cached_property
from typing import ClassVar

from django.conf import settings
from django.db import models

from cohort.accounts.models import Project
from cohort.catalog.models import BaseModel, EvalSuiteVersion, PromptDataset, VerifierVersion
from cohort.nodes.models import Leased, Node
from grpo_core.config.run import RunConfig


class RunState(models.TextChoices):
    DRAFT = "draft", "Draft"
    QUEUED = "queued", "Queued"
    STARTING = "starting", "Starting"
    EVALUATING = "evaluating", "Evaluating"
    TRAINING = "training", "Training"
    PAUSED = "paused", "Paused"
    SEALING = "sealing", "Sealing"
    SUCCEEDED = "succeeded", "Succeeded"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


class AttemptState(models.TextChoices):
    RUNNING = "running", "Running"
    FINISHED = "finished", "Finished"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"
    PAUSED = "paused", "Paused"
    PREEMPTED = "preempted", "Preempted"
    LOST = "lost", "Lost"


class Desired(models.TextChoices):
    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


class Priority(models.IntegerChoices):
    """Order of one project's runs; between projects it has no meaning."""

    LOW = -10, "Low"
    NORMAL = 0, "Normal"
    HIGH = 10, "High"


class Run(models.Model):
    """One training run: what was requested, how far it is, how it ended."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="runs")
    name = models.CharField(max_length=120)
    state = models.CharField(max_length=12, choices=RunState.choices, default=RunState.DRAFT)
    desired = models.CharField(max_length=8, choices=Desired.choices, default=Desired.RUN)
    reason = models.TextField(blank=True)
    """Why the run is in this state, for a person; empty while all is well."""
    error_code = models.CharField(max_length=40, blank=True)
    log_tail = models.TextField(blank=True)
    """Last lines of the trainer's log once the run has ended."""

    config = models.JSONField()
    """RunConfig as JSON; data and eval paths are `inputs/<sha256>.jsonl`."""
    config_digest = models.CharField(max_length=64)
    preset = models.CharField(max_length=40, blank=True)
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="runs")
    dataset = models.ForeignKey(PromptDataset, on_delete=models.PROTECT, related_name="training_runs")
    eval_dataset = models.ForeignKey(PromptDataset, on_delete=models.PROTECT, null=True, related_name="evaluated_runs")
    verifier_version = models.ForeignKey(VerifierVersion, on_delete=models.PROTECT, related_name="runs")
    suites = models.ManyToManyField(EvalSuiteVersion, through="runs.RunSuite", related_name="runs")

    phase = models.CharField(max_length=20, blank=True)
    """records.PhaseStarted.phase of the trainer."""
    step = models.PositiveIntegerField(default=0)
    steps_total = models.PositiveIntegerField(default=0)
    seconds_per_step = models.FloatField(null=True)
    """Median of the newest steps, for the time left."""
    first_metrics = models.JSONField(default=dict)
    latest_metrics = models.JSONField(default=dict)
    fence = models.PositiveIntegerField(default=0)
    """Number of the newest attempt; writes with a smaller one are refused."""
    ends = models.PositiveIntegerField(default=0)
    """How often the run has ended: trained, failed or cancelled. Each end has its own record."""

    priority = models.SmallIntegerField(choices=Priority.choices, default=Priority.NORMAL)
    node_label = models.CharField(max_length=40, blank=True)
    """Only a node with this label may take the run; empty: any."""
    gpus = models.PositiveSmallIntegerField(default=0)
    """How many GPUs a node needs to take the run, by its config."""
    needs_sandbox = models.BooleanField(default=False)
    """Its reward runs code that a person or a model wrote: only a node whose sandbox works may take it."""
    needs_packages = models.JSONField(default=list)
    """Packages of its engine that a node must have to take it (cohort.nodes.engines), by its config."""
    not_before = models.DateTimeField(null=True)
    """A run that is tried again waits until then."""
    retries = models.PositiveSmallIntegerField(default=0)
    """Times the platform has put the run back into the queue after a failure, since a person last did."""
    barren = models.PositiveSmallIntegerField(default=0)
    """Failures in a row after which the run was no further than before."""
    resume_from = models.ForeignKey("runs.Checkpoint", on_delete=models.SET_NULL, null=True, related_name="+")
    """Checkpoint that a person chose for the next attempt; empty: the newest current one."""
    from_start = models.BooleanField(default=False)
    """A person chose that the next attempt begins at the first step."""
    stalled_at = models.DateTimeField(null=True)
    """Since when nothing has moved although the worker lives; empty while something does."""
    cloned_from = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, related_name="clones")

    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="runs")
    created_at = models.DateTimeField(auto_now_add=True)
    queued_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            models.Index(fields=["project", "-id"], name="run_by_project"),
            models.Index(fields=["state"], name="run_by_state"),
            models.Index(fields=["queued_at"], condition=models.Q(state="queued"), name="run_waiting"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(condition=models.Q(state__in=RunState.values), name="run_state_known"),
            models.CheckConstraint(condition=models.Q(desired__in=Desired.values), name="run_desired_known"),
        ]

    def __str__(self) -> str:
        return self.name

    @cached_property
    def parsed_config(self) -> RunConfig:
        """`config`, parsed once. Code that changes `config` must reset it."""
        return RunConfig.from_whole(self.config, source=f"run {self.pk}")


class Attempt(Leased):
    """One try of a run on one node, from claim to end."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="attempts")
    fence = models.PositiveIntegerField()
    """1 for the run's first attempt, and one more for each."""
    state = models.CharField(max_length=10, choices=AttemptState.choices, default=AttemptState.RUNNING)
    claimed_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    end_reason = models.TextField(blank=True)
    end_code = models.CharField(max_length=40, blank=True)
    """`ok`, or the cause of the end as wire.Finish.code has it."""
    gpus = models.PositiveSmallIntegerField(default=0)
    """GPUs that the run held."""
    resumed_step = models.IntegerField(null=True)
    """Step of the checkpoint that the attempt resumed from; null: it began at the beginning."""
    valid_through = models.IntegerField(null=True)
    """What this attempt recorded beyond this step is superseded: a later attempt resumed from there. 0 leaves the
    evaluation before training, -1 nothing; null: all of it is current."""
    progress_at = models.DateTimeField(null=True)
    """When a record or a unit of work was last reported."""
    free_bytes = models.BigIntegerField(null=True)
    acked_seq = models.BigIntegerField(default=0)
    """Every record up to this one is stored."""
    spooled_bytes = models.BigIntegerField(default=0)
    manifest = models.JSONField(null=True)
    outcome = models.JSONField(null=True)

    class Meta(Leased.Meta):
        ordering: ClassVar = ["run", "fence"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["run", "fence"], name="attempt_fence_once"),
            models.UniqueConstraint(
                fields=["run"], condition=models.Q(state=AttemptState.RUNNING), name="one_running_attempt_per_run"
            ),
            models.CheckConstraint(condition=models.Q(state__in=AttemptState.values), name="attempt_state_known"),
        ]

    def __str__(self) -> str:
        return f"attempt {self.fence} of {self.run}"

    @property
    def lease_name(self) -> str:
        return f"attempt {self.fence} of run {self.run_id}"


class RunEvent(models.Model):
    """Append-only: what happened to a run, who did it, why. Trainer events carry the attempt and its seq."""

    # The constraint and the index below begin with them; so no index of each alone. The database deletes no event, so
    # that nothing which has one can be deleted either.
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="events", db_index=False)
    attempt = models.ForeignKey(Attempt, on_delete=models.PROTECT, null=True, related_name="events", db_index=False)
    seq = models.BigIntegerField(null=True)
    at = models.DateTimeField()
    actor = models.CharField(max_length=120)
    """user:<name>, node:<name>, trainer, or platform."""
    kind = models.CharField(max_length=40)
    message = models.TextField()
    data = models.JSONField(default=dict)

    class Meta:
        ordering: ClassVar = ["id"]
        indexes: ClassVar = [models.Index(fields=["run", "id"], name="event_by_run")]
        constraints: ClassVar = [models.UniqueConstraint(fields=["attempt", "seq"], name="event_seq_once")]

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class ServiceBeat(models.Model):
    """Sign of life of a part of the platform itself, so that its own outage is not taken for that of its workers."""

    name = models.CharField(max_length=20, primary_key=True)
    """web or reconciler."""
    beat_at = models.DateTimeField()
    grace_until = models.DateTimeField(null=True)
    """No lease expires before then."""

    def __str__(self) -> str:
        return self.name


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

    class Meta:
        ordering: ClassVar = ["run", "step"]
        indexes: ClassVar = [
            models.Index(fields=["run", "step"], name="checkpoint_by_run"),
            models.Index(fields=["run"], condition=models.Q(best=True), name="checkpoint_best"),
            models.Index(fields=["run"], condition=models.Q(pinned=True), name="checkpoint_pinned"),
            models.Index(
                fields=["run", "step"],
                condition=models.Q(removed_at=None) | models.Q(stored_at__isnull=False),
                name="checkpoint_held",
            ),
        ]
        constraints: ClassVar = [models.UniqueConstraint(fields=["attempt", "seq"], name="checkpoint_seq_once")]

    def __str__(self) -> str:
        return f"checkpoint at step {self.step} of {self.run}"


class CheckpointFile(models.Model):
    """A checkpoint's file that the platform holds, or is being sent, so that another node can resume from it."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="checkpoint_files")
    sha256 = models.CharField(max_length=64)
    size = models.BigIntegerField()
    received = models.BigIntegerField(default=0)
    done_at = models.DateTimeField(null=True)

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


class EvalResult(models.Model):
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="eval_results")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="eval_results")
    seq = models.BigIntegerField()
    at = models.DateTimeField()
    phase = models.CharField(max_length=10)
    suite = models.CharField(max_length=80)
    problems = models.PositiveIntegerField()
    correct = models.FloatField()
    truncated = models.PositiveIntegerField()
    errors = models.PositiveIntegerField()
    mean_tokens = models.FloatField()
    seconds = models.FloatField()
    protocol = models.JSONField()

    class Meta:
        ordering: ClassVar = ["run", "suite", "id"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["attempt", "seq"], name="eval_result_seq_once")]

    def __str__(self) -> str:
        return f"{self.suite} {self.phase}: {self.correct} of {self.problems}"


class EvalItem(models.Model):
    # The constraint and the index below begin with them; so no index of each alone.
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="eval_items", db_index=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="eval_items", db_index=False)
    seq = models.BigIntegerField()
    phase = models.CharField(max_length=10)
    suite = models.CharField(max_length=80)
    problem_id = models.CharField(max_length=200)
    prompt = models.TextField()
    answer = models.TextField()
    completion = models.TextField()
    score = models.FloatField()
    truncated = models.BooleanField()
    error = models.TextField(blank=True)
    tokens = models.PositiveIntegerField()
    detail = models.TextField(blank=True)
    slice = models.CharField(max_length=200, blank=True, default="")
    """Part of the suite that the item belongs to, such as a language or a named attack."""
    cluster = models.CharField(max_length=200, blank=True, default="")
    """Items of one cluster are not independent of each other: the same problem in several languages."""

    class Meta:
        ordering: ClassVar = ["run", "suite", "seq"]
        indexes: ClassVar = [models.Index(fields=["run", "suite", "phase"], name="eval_item_by_suite")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["attempt", "seq"], name="eval_item_seq_once"),
            models.UniqueConstraint(fields=["attempt", "phase", "suite", "problem_id"], name="eval_item_once"),
        ]

    def __str__(self) -> str:
        return f"{self.problem_id} {self.phase}: {self.score}"


class ComparisonCache(models.Model):
    """The statistics of a run's evaluations as they were last computed (`cohort.evaluations.selectors`). A row may be
    deleted at any time: they are computed again."""

    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="comparison_cache")
    key = models.CharField(max_length=64)
    """SHA-256 of all that went in."""
    comparisons = models.TextField()
    """JSON, as text: jsonb would change numbers, such as −0."""

    def __str__(self) -> str:
        return f"comparisons of run {self.run_id}"


class RunSuite(models.Model):
    """A suite version that a run is evaluated on. What the run decided of it (margin, limit) is in its config."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="run_suites")
    version = models.ForeignKey(EvalSuiteVersion, on_delete=models.PROTECT, related_name="run_suites")

    class Meta:
        ordering: ClassVar = ["run", "version__suite__name"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["run", "version"], name="run_suite_once")]

    def __str__(self) -> str:
        return f"{self.version} in {self.run}"


class ImportedResult(models.Model):
    """One number that another tool measured and somebody uploaded: shown next to the run's own, never mixed with them.
    The database refuses to change or delete a row."""

    class Tool(models.TextChoices):
        LM_EVAL = "lm-evaluation-harness", "lm-evaluation-harness"
        INSPECT = "inspect", "Inspect"

    class Phase(models.TextChoices):
        BEFORE = "before", "before training"
        AFTER = "after", "after training"
        NEITHER = "neither", "neither"

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="imported_results")
    tool = models.CharField(max_length=40, choices=Tool.choices)
    task = models.CharField(max_length=200)
    phase = models.CharField(max_length=10, choices=Phase.choices)
    """Which weights were measured, as the person who imported it states."""
    metric = models.CharField(max_length=200)
    value = models.FloatField()
    stderr = models.FloatField(null=True)
    n = models.PositiveIntegerField(null=True)
    """Items that the value is of; empty where the file does not state it."""
    higher_is = models.CharField(max_length=10, blank=True)
    """better or worse, as the file states; empty where it does not."""
    facts = models.JSONField(default=dict)
    """What the file states of itself, unchanged: versions, hashes, model, date, sampling limits."""
    file_name = models.CharField(max_length=200)
    file_sha256 = models.CharField(max_length=64)
    samples = models.JSONField(null=True)
    """{sha256, n, mean} of the samples file that came along: mean is of the same metric over its lines."""
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["run", "id"]

    def __str__(self) -> str:
        return f"{self.task} {self.metric} {self.phase}: {self.value}"

    @property
    def samples_agree(self) -> bool:
        """Whether the samples that came along give the stated value, to a millionth."""
        mean = (self.samples or {}).get("mean")
        return mean is not None and math.isclose(mean, self.value, rel_tol=1e-6, abs_tol=1e-6)
