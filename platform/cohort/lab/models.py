"""Jobs that try a reward or a model on a worker, what came of them, and what was known of a reward at a launch."""

from typing import ClassVar

from django.conf import settings
from django.db import models

from cohort.accounts.models import Project
from cohort.catalog.models import BaseModel, EvalSuiteVersion, PromptDataset, VerifierVersion
from cohort.nodes.models import Leased, Node
from cohort.runs.models import EvalAnswer, EvalTotals, Run
from grpo_core.stats.unscored import scored_share


class JobKind(models.TextChoices):
    PROBE = "probe", "probe"
    TRY = "try", "given answers"
    SAMPLE = "sample", "answers of a base model"
    ESTIMATE = "estimate", "time and memory of a run"
    PREVIEW = "preview", "exact tokens of a run"
    DOCTOR = "doctor", "look at a base model"
    EVALUATE = "evaluate", "evaluation of a base model"
    CHAT = "chat", "chat with a base model"
    RESCORE = "rescore", "re-score of a run"
    BEST_OF_N = "best_of_n", "best of n by a reward"


class JobState(models.TextChoices):
    WAITING = "waiting", "waiting"
    RUNNING = "running", "running"
    DONE = "done", "done"
    FAILED = "failed", "failed"
    CANCELLED = "cancelled", "cancelled"


OPEN = (JobState.WAITING, JobState.RUNNING)


class Conversation(models.Model):
    """A chat with a base model, and with another one next to it."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="conversations")
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="conversations")
    reference = models.ForeignKey(BaseModel, on_delete=models.PROTECT, null=True, related_name="reference_in")
    """Answers next to the model; null: the model answers alone."""
    system = models.TextField(blank=True)
    """System message; empty: none."""
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"chat {self.pk} with {self.base_model}"


class LabJob(Leased):
    """One try of a reward on a worker, of a version, or of a draft that nobody has saved; what a run with it would
    take, or show its policy; a look at a base model, its evaluation, or a chat with it."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="lab_jobs")
    kind = models.CharField(max_length=16, choices=JobKind.choices)
    version = models.ForeignKey(VerifierVersion, on_delete=models.PROTECT, null=True, related_name="lab_jobs")
    """Null: a draft."""
    spec = models.JSONField()
    """RewardConfig as JSON; empty where no reward is tried."""
    spec_digest = models.CharField(max_length=64)
    ground_truth = models.ForeignKey(VerifierVersion, on_delete=models.PROTECT, null=True, related_name="truth_of_jobs")
    """Of a best-of-n: what says how good the completions are that the reward chooses."""
    dataset = models.ForeignKey(PromptDataset, on_delete=models.PROTECT, null=True, related_name="lab_jobs")
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, null=True, related_name="lab_jobs")
    options = models.JSONField(default=dict)
    """As grpo_core.lab.job reads them."""
    config = models.JSONField(null=True)
    """Of an estimate and a preview: the RunConfig, as JSON."""
    suites = models.JSONField(default=list)
    """Of an evaluation: the suites as a config's `eval.suites` has them."""
    conversation = models.ForeignKey(Conversation, on_delete=models.PROTECT, null=True, related_name="jobs")
    """Of a chat: what it answers."""
    config_digest = models.CharField(max_length=64, blank=True, default="")
    prompts_digest = models.CharField(max_length=64, blank=True, default="")
    """Of a preview: `cohort.lab.prompts.prompts_digest` of the config."""
    inputs = models.JSONField(default=list)
    """The files that it reads, each {path, sha256, size, artifact}; of a checkpoint {path, sha256, size, run}."""
    needs = models.JSONField(default=dict)
    """Of an estimate, what its node must have: {gpus, needs_packages, node_label}, as of a Run."""

    state = models.CharField(max_length=10, choices=JobState.choices, default=JobState.WAITING)
    result = models.JSONField(null=True)
    """Of a probe, grpo_core.probe.report; of an estimate, grpo_core.records.estimate; of a preview,
    grpo_core.lab.preview; of the doctor, grpo_core.records.doctor; of an evaluation, grpo_core.lab.evaluation without
    its items; of a chat, grpo_core.lab.chat; of a re-score, grpo_core.lab.rescore; of a best-of-n,
    grpo_core.lab.best_of_n; of the others, grpo_core.lab.result."""
    error_code = models.CharField(max_length=40, blank=True)
    error = models.TextField(blank=True)
    log_tail = models.TextField(blank=True)
    seconds = models.FloatField(null=True)
    """On the worker, from claim to end."""

    needs_sandbox = models.BooleanField(default=False)
    node = models.ForeignKey(Node, on_delete=models.PROTECT, null=True, related_name="lab_jobs")
    """The node that has it, or had it last."""
    fence = models.PositiveIntegerField(default=0)
    """How often it was claimed; a call with a smaller one is refused."""
    cancel_asked = models.BooleanField(default=False)

    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="lab_jobs")
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta(Leased.Meta):
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            models.Index(fields=["state", "id"], name="lab_job_state"),
            models.Index(fields=["project", "config_digest"], name="lab_job_config"),
            models.Index(fields=["project", "prompts_digest"], name="lab_job_prompts"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"

    @property
    def lease_name(self) -> str:
        return f"this lease of job {self.pk}"


class ModelEvalResult(EvalTotals):
    """One suite, or the held-out problems of a dataset, that a base model answered outside of a run. The database
    refuses to change or delete a row."""

    job = models.ForeignKey(LabJob, on_delete=models.PROTECT, related_name="evaluations")
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="evaluations")
    suite_version = models.ForeignKey(EvalSuiteVersion, on_delete=models.PROTECT, null=True, related_name="evaluations")
    """Null: the held-out problems of the job's dataset."""
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["job", "suite"], name="model_eval_once_per_job")]

    def __str__(self) -> str:
        return f"{self.suite} of {self.base_model}: {self.correct} of {self.problems}"

    @property
    def share(self) -> float | None:
        """Mean score of the scored answers, 0 to 1; None where none was scored."""
        return scored_share(self.correct, self.problems, self.errors)


class ModelEvalItem(EvalAnswer):
    """One item of it. The database refuses to change or delete a row."""

    result = models.ForeignKey(ModelEvalResult, on_delete=models.PROTECT, related_name="items", db_index=False)
    index = models.PositiveIntegerField()
    """In the order of the suite, from 0."""

    class Meta:
        ordering: ClassVar = ["result", "index"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["result", "index"], name="model_eval_item_index_once"),
            models.UniqueConstraint(fields=["result", "problem_id"], name="model_eval_item_once"),
        ]

    def __str__(self) -> str:
        return f"{self.problem_id}: {self.score}"


class ChatMessage(models.Model):
    """What a person wrote in a conversation, and how it is answered."""

    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="messages", db_index=False)
    number = models.PositiveIntegerField()
    """In the conversation, from 1."""
    text = models.TextField()
    sides = models.JSONField()
    """Who answers: model, reference, or both."""
    sampling = models.JSONField()
    """grpo_core.lab.job.TurnSettings, as JSON."""
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)
    redacted_at = models.DateTimeField(null=True)
    """When its text, and those of its answers, were deleted."""

    class Meta:
        ordering: ClassVar = ["conversation", "number"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["conversation", "number"], name="chat_message_once")]

    def __str__(self) -> str:
        return f"message {self.number} of {self.conversation}"


class ChatAnswer(models.Model):
    """What one model answered to a message, or why it did not."""

    message = models.ForeignKey(ChatMessage, on_delete=models.CASCADE, related_name="answers", db_index=False)
    side = models.CharField(max_length=10)
    text = models.TextField(blank=True)
    tokens = models.PositiveIntegerField()
    prompt_tokens = models.PositiveIntegerField()
    finish = models.CharField(max_length=10, blank=True)
    """eos, stop or length; empty where there is an error."""
    template = models.CharField(max_length=10, blank=True)
    """chat or plain; empty where no model came to answer."""
    seconds = models.FloatField()
    error = models.TextField(blank=True)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["message", "side"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["message", "side"], name="chat_answer_once_per_side")]

    def __str__(self) -> str:
        return f"{self.side}'s answer to {self.message}"


class VerifierProbe(models.Model):
    """What a probe found of a version. The database refuses to change or delete a row."""

    version = models.ForeignKey(VerifierVersion, on_delete=models.PROTECT, related_name="probes")
    dataset = models.ForeignKey(PromptDataset, on_delete=models.PROTECT, null=True, related_name="probes")
    """Whose problems were used; null: the probe's own."""
    job = models.OneToOneField(LabJob, on_delete=models.PROTECT, related_name="probe")
    report = models.JSONField()
    """grpo_core.probe.report.ProbeReport."""
    digest = models.CharField(max_length=64)
    """SHA-256 of the report's canonical JSON (RFC 8785)."""
    verdict = models.CharField(max_length=20)
    """Of the report: clean, pays_wrong, rejects_right or undecided."""
    pays_wrong = models.JSONField(default=list)
    """Names of the classes of wrong answers that it rewards."""
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"probe of {self.version}"


class LaunchProbe(models.Model):
    """What was known of a run's reward when the run was submitted. The database refuses to change or delete a row; a
    run that is submitted again gets another."""

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="launch_probes")
    probe = models.ForeignKey(VerifierProbe, on_delete=models.PROTECT, null=True, related_name="launches")
    """Null: the version was never probed."""
    state = models.CharField(max_length=20)
    """The probe's verdict, or unprobed."""
    pays_wrong = models.JSONField(default=list)
    overridden = models.BooleanField(default=False)
    """The run was blocked, and the person launched it with an override."""
    reason = models.TextField(blank=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"{self.run}: {self.state}"


class LaunchEstimate(models.Model):
    """What was estimated of a run's config when the run was submitted. The database refuses to change or delete a row;
    a run that is submitted again gets another."""

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="launch_estimates")
    job = models.ForeignKey(LabJob, on_delete=models.PROTECT, related_name="launches")
    """The job that measured it."""
    estimate = models.JSONField()
    """grpo_core.records.estimate.Estimate."""
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"estimate of {self.run}"
