"""A run, its attempts on nodes, and the append-only history of both."""

from functools import cached_property
from typing import Any, ClassVar

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models

from cohort.accounts.models import Project
from cohort.catalog.models import BaseModel, EvalSuiteVersion, PromptDataset, VerifierVersion
from cohort.nodes.models import Leased, Node
from cohort.runs.imported_reward import ImportedReward
from grpo_core.config.kinds import AnyConfig, ScoredConfig, config_from_whole
from grpo_core.config.reward import RewardConfig
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


class RunOrigin(models.TextChoices):
    TRAINED = "trained", "Trained here"
    IMPORTED = "imported", "Imported, not observed"


class RunKind(models.TextChoices):
    """What a run does: `grpo_core.config.kinds` has the config of each."""

    GRPO = "grpo", "GRPO"
    SFT = "sft", "Fine-tuning"
    REWARD_MODEL = "reward_model", "Reward model"
    SAMPLE = "sample", "Sampling"
    DISTILL = "distill", "Distillation"


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


UNSCORED_KINDS = (RunKind.SFT, RunKind.REWARD_MODEL, RunKind.DISTILL)
"""Kinds of run without a reward."""


class Priority(models.IntegerChoices):
    """Order of one project's runs; between projects it has no meaning."""

    LOW = -10, "Low"
    NORMAL = 0, "Normal"
    HIGH = 10, "High"


class TrainedRuns(models.Manager["Run"]):
    """Without the runs that were imported: whatever starts, lists, compares, seals or alerts reads these alone."""

    def get_queryset(self) -> models.QuerySet["Run"]:
        return super().get_queryset().filter(origin=RunOrigin.TRAINED)


class Run(models.Model):
    """One training run: what was requested, how far it is, how it ended. Of one that another trainer made and a person
    imported there are samples and no more; `objects` leaves these out, `every` has them."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="runs")
    name = models.CharField(max_length=120)
    state = models.CharField(max_length=12, choices=RunState.choices, default=RunState.DRAFT)
    kind = models.CharField(max_length=12, choices=RunKind.choices, default=RunKind.GRPO)
    origin = models.CharField(max_length=8, choices=RunOrigin.choices, default=RunOrigin.TRAINED)
    desired = models.CharField(max_length=8, choices=Desired.choices, default=Desired.RUN)
    reason = models.TextField(blank=True)
    """Why the run is in this state, for a person; empty while all is well."""
    error_code = models.CharField(max_length=40, blank=True)
    log_tail = models.TextField(blank=True)
    """Last lines of the trainer's log once the run has ended."""

    config = models.JSONField()
    """The config of the run's kind as JSON; data and eval paths are `inputs/<sha256>.jsonl`. Of an imported run it is
    {"reward": ImportedReward}."""
    config_digest = models.CharField(max_length=64)
    preset = models.CharField(max_length=40, blank=True)
    # The next three are typed as if every run had them: a constraint holds it for all but imported ones, and of the
    # reward for the kinds that score.
    base_model: "models.ForeignKey[BaseModel, BaseModel]" = models.ForeignKey(  # type: ignore[misc]
        BaseModel, on_delete=models.PROTECT, null=True, related_name="runs"
    )
    dataset: "models.ForeignKey[PromptDataset, PromptDataset]" = models.ForeignKey(  # type: ignore[misc]
        PromptDataset, on_delete=models.PROTECT, null=True, related_name="training_runs"
    )
    eval_dataset = models.ForeignKey(PromptDataset, on_delete=models.PROTECT, null=True, related_name="evaluated_runs")
    verifier_version: "models.ForeignKey[VerifierVersion, VerifierVersion]" = models.ForeignKey(  # type: ignore[misc]
        VerifierVersion, on_delete=models.PROTECT, null=True, related_name="runs"
    )
    eval_verifier_version = models.ForeignKey(
        VerifierVersion, on_delete=models.PROTECT, null=True, blank=True, related_name="runs_judged"
    )
    """What judges the held-out problems; null: the reward."""
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
    sweep = models.ForeignKey("runs.Sweep", on_delete=models.SET_NULL, null=True, related_name="runs")
    form_token = models.CharField(max_length=16, blank=True, default="")
    """Of the run form that made it, or made of the API call's Idempotency-Key: sent twice it makes one run. Empty: it
    was made without one."""

    tags = ArrayField(models.CharField(max_length=40), default=list, blank=True)
    """Short words of people, in the order of the alphabet."""
    note = models.TextField(blank=True, default="")
    """Of people, as it is now; what it was is in the audit log."""
    hypotheses = models.TextField(blank=True, default="")
    """What its people expect, one a line; registered in the audit log at the launch, and not part of the config."""
    archived_at = models.DateTimeField(null=True)
    """Since when the list leaves the run out."""

    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="runs")
    created_at = models.DateTimeField(auto_now_add=True)
    queued_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    objects = TrainedRuns()
    every: ClassVar["models.Manager[Run]"] = models.Manager()

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            models.Index(fields=["project", "-id"], include=["archived_at"], name="run_by_project"),
            models.Index(fields=["state"], name="run_by_state"),
            models.Index(fields=["queued_at"], condition=models.Q(state="queued"), name="run_waiting"),
            GinIndex(fields=["tags"], name="run_by_tag"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(condition=models.Q(state__in=RunState.values), name="run_state_known"),
            models.CheckConstraint(condition=models.Q(desired__in=Desired.values), name="run_desired_known"),
            models.CheckConstraint(condition=models.Q(origin__in=RunOrigin.values), name="run_origin_known"),
            models.CheckConstraint(
                condition=models.Q(origin=RunOrigin.IMPORTED)
                | models.Q(base_model__isnull=False, dataset__isnull=False, verifier_version__isnull=False)
                | models.Q(base_model__isnull=False, dataset__isnull=False, kind__in=UNSCORED_KINDS),
                name="run_trained_of_rows",
            ),
            models.CheckConstraint(condition=models.Q(kind__in=RunKind.values), name="run_kind_known"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def imported(self) -> bool:
        """Made by another trainer: there is no config, record or attempt of a worker."""
        return self.origin == RunOrigin.IMPORTED

    @property
    def has_samples(self) -> bool:
        """Whether it samples groups and scores them, which people can then review."""
        return self.kind not in UNSCORED_KINDS

    @cached_property
    def scored_by(self) -> RewardConfig | ImportedReward:
        """What gave its samples their rewards, as far as it is known. Of a run that `has_samples`."""
        if self.imported:
            return ImportedReward.model_validate(self.config["reward"])
        return self.scored_config.reward

    @cached_property
    def parsed_config(self) -> AnyConfig:
        """`config`, parsed once, of the run's kind. Code that changes `config` must reset it."""
        return config_from_whole(self.config, source=f"run {self.pk}")

    @property
    def scored_config(self) -> ScoredConfig:
        """`parsed_config` of a run that `has_samples` and is not imported."""
        config = self.parsed_config
        if not isinstance(config, ScoredConfig):
            raise TypeError(f"run {self.pk} is of kind {self.kind}, which scores nothing")
        return config

    @property
    def grpo_config(self) -> RunConfig:
        """`parsed_config` of a GRPO run, for what no other kind has."""
        config = self.parsed_config
        if not isinstance(config, RunConfig):
            raise TypeError(f"run {self.pk} is of kind {self.kind}, not grpo")
        return config

    def newest_manifest(self) -> dict[str, Any] | None:
        """What the trainer of the newest attempt that loaded its inputs reported of them. One query."""
        return self.attempts.exclude(manifest=None).order_by("-fence").values_list("manifest", flat=True).first()


class DatasetRole(models.TextChoices):
    """Which field of a config a further dataset is of."""

    MORE = "more", "Further conversations"
    HELDOUT = "heldout", "Held out"
    REPLAY = "replay", "Earlier preferences"


class RunDataset(models.Model):
    """A dataset that a run reads besides `Run.dataset` and `Run.eval_dataset`."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="run_datasets")
    dataset = models.ForeignKey(PromptDataset, on_delete=models.PROTECT, related_name="run_datasets")
    role = models.CharField(max_length=8, choices=DatasetRole.choices)
    position = models.PositiveSmallIntegerField()
    """In the order of the config."""

    class Meta:
        ordering: ClassVar = ["run", "position"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["run", "position"], name="run_dataset_once")]

    def __str__(self) -> str:
        return f"{self.dataset} in {self.run}"


class Attempt(Leased):
    """One try of a run on one node, from claim to end."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts")
    node: "models.ForeignKey[Node, Node]" = models.ForeignKey(  # type: ignore[misc]
        Node, on_delete=models.PROTECT, null=True, related_name="attempts"
    )
    """Null for the one attempt of an imported run, of which no machine is known."""
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
