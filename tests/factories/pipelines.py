"""Pipelines on the platform, and stages of them that end."""

from typing import Any

from cohort.pipelines.models import Pipeline, PipelineStage
from cohort.pipelines.states import pipeline_states
from cohort.runs.models import Run
from cohort.runs.services import run_sealed
from tests.factories.runs import Maker, add_checkpoint, put_in

TEXT = """
name: two
stages:
  second:
    model: {stage: first}
    data: {path: additions}
    reward: r1 + exact@1
    eval: {holdout: 4}
    optim: {steps: 20}
  first:
    model: {path: tiny}
    data: {path: additions}
    reward: r1 + exact@1
    eval: {holdout: 4}
    optim: {steps: 10}
"""
"""Two stages, one after the other, of the catalog that `maker` has."""


def stage(pipeline: Pipeline, slug: str) -> PipelineStage:
    return PipelineStage.objects.select_related("pipeline__project", "current__run").get(pipeline=pipeline, slug=slug)


def run_of(pipeline: Pipeline, slug: str) -> Run:
    current = stage(pipeline, slug).current
    assert current is not None
    return current.run


def states(pipeline: Pipeline) -> dict[str, str]:
    return {slug: now.state for slug, now in pipeline_states(Pipeline.objects.get(pk=pipeline.pk)).items()}


def stage_succeed(maker: Maker, pipeline: Pipeline, slug: str, **checkpoint: Any) -> Run:
    """Say that the stage's run has trained, and that its final weights are there."""
    run = run_of(pipeline, slug)
    put_in(run, "sealing")
    attempt = maker.attempt(run, state="finished")
    add_checkpoint(attempt, run.steps_total, final=True, **{"stored": True, **checkpoint})
    run_sealed(run=run)
    return run
