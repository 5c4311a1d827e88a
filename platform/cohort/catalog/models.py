"""What a run is made from: base models, problem sets, verifiers. Versions never change once written."""

from typing import ClassVar

from django.conf import settings
from django.db import models

from cohort.accounts.models import Project


class BaseModel(models.Model):
    """A model that runs may start from: a folder below the models folder, or a Hub repository at a commit."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="base_models")
    name = models.CharField(max_length=120)
    path = models.CharField(max_length=300)
    """Folder relative to the models folder, or Hub id; what RunConfig.model.path gets."""
    revision = models.CharField(max_length=80, blank=True)
    architecture = models.CharField(max_length=120, blank=True)
    parameters = models.BigIntegerField(null=True)
    weights = models.JSONField(default=dict)
    """{file name: {size, sha256}} of the safetensors files. A Hub repository is never read here: of it, architecture,
    parameters and weights stay empty, and the manifest of each of its runs says what that run's worker read."""
    weights_digest = models.CharField(max_length=64, blank=True)
    """SHA-256 over the canonical JSON of `weights`: one name for the whole set."""
    provenance = models.JSONField(null=True)
    """What the folder's own cold_start.json says of how it came to be."""
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["project", "name"], name="base_model_name_once")]

    def __str__(self) -> str:
        return self.name


class PromptDataset(models.Model):
    """A file of problems, stored under its SHA-256. Serves for training or for held-out evaluation."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="datasets")
    name = models.CharField(max_length=120)
    format = models.CharField(max_length=10)
    sha256 = models.CharField(max_length=64)
    size = models.BigIntegerField()
    problems = models.IntegerField()
    prompt_chars = models.JSONField(default=dict)
    """{min, mean, max}"""
    preview = models.JSONField(default=list)
    """The first problems, as [{id, prompt, answer}]."""
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
    """A reward source under a name; its versions say what it pays for."""

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
