"""Pipelines, their stages, and the runs that were made of each stage."""

from typing import ClassVar, cast

from django.conf import settings
from django.db import models

from cohort.accounts.models import Project
from cohort.runs.models import Run
from grpo_core.config.stage import Kind
from grpo_core.pipeline.config import PipelineConfig, Stage


class Pipeline(models.Model):
    """A graph of stages, and whether they begin by themselves."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="pipelines", db_index=False)
    name = models.CharField(max_length=120)
    config = models.JSONField()
    """A PipelineConfig, in which rows of the catalog are called by their names."""
    digest = models.CharField(max_length=64)
    """SHA-256 of its canonical JSON."""
    active = models.BooleanField(default=False)
    """Stages begin once their inputs are there. Off: it was never started, or is paused."""
    started_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+")
    """In whose name stages are launched; the person who started it last."""
    override = models.TextField(blank=True, default="")
    """Why stages are launched although their reward is blocked by its probe."""
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["project", "name"], name="pipeline_name_once")]

    def __str__(self) -> str:
        return self.name

    @property
    def parsed_config(self) -> PipelineConfig:
        return PipelineConfig.from_dict(self.config, source=f"pipeline {self.pk}")


class PipelineStage(models.Model):
    """One stage, and its current run. Its state is worked out (`states`), never stored."""

    pipeline = models.ForeignKey(Pipeline, on_delete=models.CASCADE, related_name="stages", db_index=False)
    slug = models.CharField(max_length=40)
    position = models.PositiveSmallIntegerField()
    """In the order of the graph, from 0."""
    kind = models.CharField(max_length=12)
    fields = models.JSONField()
    """As given, without `kind`."""
    current = models.ForeignKey("pipelines.StageRun", on_delete=models.SET_NULL, null=True, related_name="+")
    """Null: no run counts for the stage; it begins once its inputs are there."""
    refusal = models.TextField(blank=True, default="")
    """Why it could not be launched; a person has to change something and retry it."""

    class Meta:
        ordering: ClassVar = ["pipeline", "position"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["pipeline", "slug"], name="stage_once")]

    def __str__(self) -> str:
        return f"{self.slug} of {self.pipeline}"

    @property
    def parsed(self) -> Stage:
        return Stage(self.slug, cast("Kind", self.kind), self.fields)


class StageRun(models.Model):
    """Append-only: a run that was made for a stage, and what it was made with."""

    stage = models.ForeignKey(PipelineStage, on_delete=models.CASCADE, related_name="runs")
    run = models.OneToOneField(Run, on_delete=models.PROTECT, related_name="stage_run")
    digest = models.CharField(max_length=64)
    """Of the stage when the run was made: its fields and the digests of its inputs."""
    given = models.JSONField()
    """{stage: digest of what it gave}"""
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return f"run {self.run_id} of {self.stage}"
