"""What a run is made from: base models, problem sets, verifiers, suites. Versions never change once written."""

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.dispatch import Signal

from cohort.accounts.models import Project

dataset_added = Signal()
"""Sent with `dataset`, a new PromptDataset."""
suite_version_added = Signal()
"""Sent with `version`, a new EvalSuiteVersion."""


class BaseModel(models.Model):
    """A model that runs may start from: a folder below the models folder, a Hub repository at a commit, or a checkpoint
    of a run."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="base_models")
    name = models.CharField(max_length=120)
    path = models.CharField(max_length=300)
    """Folder relative to the models folder, or Hub id; what RunConfig.model.path gets. Of a checkpoint: where the
    worker puts its files, relative to the run directory."""
    revision = models.CharField(max_length=80, blank=True)
    architecture = models.CharField(max_length=120, blank=True)
    parameters = models.BigIntegerField(null=True)
    weights = models.JSONField(default=dict)
    """{file name: {size, sha256}} of the safetensors files. A Hub repository is never read here: of it, architecture,
    parameters and weights stay empty, and the manifest of each of its runs holds what that run's worker read."""
    weights_digest = models.CharField(max_length=64, blank=True)
    """SHA-256 over the canonical JSON of `weights`: one name for the whole set."""
    provenance = models.JSONField(null=True)
    """The folder's provenance.json, which states how the model was made."""
    adapter = models.JSONField(null=True)
    """{rank, alpha, base, revision} where the folder holds LoRA adapters; `weights` and `parameters` are then theirs,
    and the worker looks for the base model next to the folder, then as for every model."""
    shape = models.JSONField(null=True)
    """As grpo_core.compute.shape has it; null of a Hub repository, of adapters, and of a checkpoint."""
    pretraining = models.JSONField(null=True)
    """{flop, source, by, at}: what training it took, as a person stated it; null where nobody did."""
    checkpoint = models.OneToOneField("runs.Checkpoint", on_delete=models.PROTECT, null=True, related_name="base_model")
    """What it is a registration of; its files come from the platform, and stay there while this row does."""
    archived_at = models.DateTimeField(null=True)
    """Since when it is no choice for new runs and jobs; what was made with it stays as it is."""
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["project", "name"], name="base_model_name_once")]

    def __str__(self) -> str:
        return self.name


class DatasetContent(models.TextChoices):
    """What a row of a dataset is."""

    PROBLEMS = "problems", "Problems"
    CONVERSATIONS = "conversations", "Conversations"
    PREFERENCES = "preferences", "Preferences"


class PromptDataset(models.Model):
    """A file of problems, stored under its SHA-256. Serves for training or for held-out evaluation. Or of conversations
    to fine-tune on, or of preferences for a reward model."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="datasets")
    name = models.CharField(max_length=120)
    content = models.CharField(max_length=16, choices=DatasetContent.choices, default=DatasetContent.PROBLEMS)
    format = models.CharField(max_length=20)
    """Layout of its rows, as `data.format` names it; never auto."""
    mapping = models.JSONField(default=dict)
    """Which field is what, as `data.columns` has it; what the layout says itself is left out."""
    container = models.CharField(max_length=10, default="jsonl")
    """jsonl, json, csv or parquet."""
    sha256 = models.CharField(max_length=64)
    size = models.BigIntegerField()
    problems = models.IntegerField()
    """Rows."""
    prompt_chars = models.JSONField(default=dict)
    """{min, mean, max}"""
    preview = models.JSONField(default=list)
    """The first problems, as [{id, prompt, answer}], where they have them with messages and other_answers."""
    columns = models.JSONField(default=dict)
    """{field other than prompt: problems that have it}"""
    made = models.JSONField(null=True)
    """{task, size, seed, params, version} where a reasoning-gym task made the problems; null for an upload."""
    sampled_by = models.ForeignKey("runs.Run", on_delete=models.PROTECT, null=True, related_name="sampled_datasets")
    """The run of kind `sample` whose completions it holds; null for what was uploaded or made by a task."""
    source = models.TextField(blank=True)
    """Where the problems come from, in the uploader's words."""
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["project", "name"], name="dataset_name_once")]

    def __str__(self) -> str:
        return self.name

    @property
    def artifact(self) -> str:
        """Key in the artifact store."""
        return f"datasets/{self.sha256}"


class Verifier(models.Model):
    """A reward source under a name; its versions hold the specifications."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="verifiers")
    name = models.CharField(max_length=120)
    description = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["project", "name"], name="verifier_name_once")]

    def __str__(self) -> str:
        return self.name


class VerifierVersion(models.Model):
    """One immutable version: a RewardConfig and its digest."""

    verifier = models.ForeignKey(Verifier, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    spec = models.JSONField()
    """RewardConfig as JSON."""
    digest = models.CharField(max_length=64)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["verifier", "-number"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["verifier", "number"], name="verifier_version_once")]

    def __str__(self) -> str:
        return f"{self.verifier.name} v{self.number}"


class ProbeCase(models.Model):
    """An answer that people judged: every probe of the verifier, whichever version, holds it to that."""

    verifier = models.ForeignKey(Verifier, on_delete=models.CASCADE, related_name="probe_cases")
    answer = models.JSONField()
    """As grpo_core.lab.job.JudgedText: the problem, the completion and whether people call it right."""
    digest = models.CharField(max_length=64)
    """SHA-256 of problem and completion."""
    source = models.JSONField()
    """Where it was judged: {run, group, step, sample} or {chat, message}, ids of runs, groups and chats."""
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["verifier", "pk"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["verifier", "digest"], name="probe_case_once")]

    def __str__(self) -> str:
        return f"probe case {self.pk} of {self.verifier}"


class EvalSuite(models.Model):
    """A suite of evaluation items under a name; its versions hold the items and how they are scored."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="suites")
    name = models.CharField(max_length=60)
    """What configs, results and cards call it: small letters, digits, - and _."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["project", "name"], name="suite_name_once")]

    def __str__(self) -> str:
        return self.name


class EvalSuiteVersion(models.Model):
    """One immutable version: the items' file by its SHA-256, and everything that decides a score. The database refuses
    to change or delete a row."""

    suite = models.ForeignKey(EvalSuite, on_delete=models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField()
    title = models.CharField(max_length=120)
    category = models.CharField(max_length=40)
    scorer = models.JSONField()
    """{kind, params}, as grpo_core.config.evaluation has it."""
    higher_is = models.CharField(max_length=10)
    """better, worse or neutral: which way harm is counted."""
    sensitive = models.BooleanField(default=False)
    """Items and answers are shown to reviewers only, behind a click, and stay out of public cards."""
    margin = models.FloatField()
    """What the run form offers as the margin of regression."""
    builtin = models.CharField(max_length=60, blank=True)
    """Name of the starter suite that it is; empty for an upload."""
    sha256 = models.CharField(max_length=64)
    """Of the items' file, in the suites' own JSONL."""
    size = models.BigIntegerField()
    items = models.PositiveIntegerField()
    clusters = models.PositiveIntegerField()
    """Different values of `cluster`; 0 where the items name none."""
    slices = models.JSONField(default=dict)
    """{slice: items}; empty where the items name none."""
    preview = models.JSONField(default=list)
    """The first items, as [{id, prompt, target, choices, slice, attack}]."""
    format = models.CharField(max_length=20)
    """Format that the uploaded files were read as."""
    files = models.JSONField(default=list)
    """[{name, sha256, size}] of the uploaded files, before conversion."""
    taken = models.JSONField(default=dict)
    """{limit, attacks} by which items were made from the files; empty where all were taken unchanged."""
    limits = models.TextField(blank=True)
    """What the suite cannot show, in plain words."""
    source = models.TextField(blank=True)
    licence = models.CharField(max_length=200, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["suite", "-number"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["suite", "number"], name="suite_version_once")]

    def __str__(self) -> str:
        return f"{self.suite.name} v{self.number}"

    @property
    def name(self) -> str:
        return self.suite.name

    @property
    def artifact(self) -> str:
        """Key of the items' file in the artifact store."""
        return f"suites/{self.sha256}"
