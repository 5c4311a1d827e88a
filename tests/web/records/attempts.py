"""Runs of several attempts, or that ended more than once: more of the SCENARIOS."""

from datetime import timedelta
from typing import Any

from django.db.models import F

from cohort.nodes.models import Node
from cohort.records.services import record_seal
from cohort.runs.models import Run
from cohort.runs.services import run_cancel, run_extend, run_retry
from grpo_core.records import types as records
from grpo_core.trainer.metrics import Counts
from tests.factories import sealed_run
from tests.factories.sealed_run import attempted, checkpoint, ended, evaluation, step
from tests.web.records.conftest import World
from tests.web.records.scenarios import changed, scenario

NOTHING = {**Counts().totals(), "seconds": 2.0}
"""Totals of an older trainer that ended before it had taken up what was done before it; today's sends none."""


def began(run: Run) -> list[records.Record]:
    """Up to the first step: inputs, evaluation, the checkpoint before training."""
    return [
        sealed_run.manifest(run),
        records.PhaseStarted(phase="evaluating_before", total=100),
        *evaluation("before", sealed_run.BEFORE, sealed_run.PROTOCOL),
        checkpoint(0),
        records.PhaseStarted(phase="training", total=3),
    ]


def resumed(run: Run, number: int) -> list[records.Record]:
    return [
        sealed_run.manifest(run),
        records.Resumed(step=number, checkpoint=f"checkpoints/step-{number:06d}"),
        records.PhaseStarted(phase="training", total=3),
    ]


def failed_after_two_steps(run: Run, *more: records.Record, code: str = "out_of_memory") -> Run:
    """Two steps, 610 tokens, a checkpoint after the first; ended for good unless `code` is one that is tried again."""
    steps = [*step(1, 0.5, tokens=300), checkpoint(1), *step(2, 0.1, tokens=610)]
    return attempted(run, [*began(run), *steps, *more], end="failed", code=code, message="it broke")


def sealed_and_retried(world: World, *more: records.Record, **how: Any) -> Run:
    """Failed for good after step 2, sealed, and put back into the queue by a person."""
    run = failed_after_two_steps(world.launch(), *more)
    record_seal(run=run)
    run_retry(run=run, actor=world.alice, **how)
    return run


def refused_to_resume(run: Run, totals: dict[str, float], *more: records.Record) -> Run:
    """Another attempt, which saw other weights than those that the checkpoint was trained from."""
    weights = {"weights": {"model.safetensors": "f" * 64}}
    why = {"code": "checkpoint_error", "message": "the base model's weights have changed"}
    refused = records.Outcome(status="failed", steps_done=0, steps_planned=3, totals=totals, **why)
    reported = changed([sealed_run.manifest(run)], "manifest", model=weights)
    return attempted(run, [*reported, *more, refused], end="failed", **why)


@scenario
def resumed_on_another_node(world: World) -> Run:
    """Killed after step 3 with a checkpoint of step 1, resumed from there elsewhere, finished. The first attempt held
    two GPUs."""
    run = world.launch()
    steps = [*step(1, 0.5, tokens=300), checkpoint(1), *step(2, 0.1, tokens=610), *step(3, 0.2, tokens=950)]
    why = {"code": "trainer_killed", "message": "The trainer was killed by SIGKILL"}
    run = attempted(run, [*began(run), *steps], end="failed", **why)
    run.attempts.update(gpus=2)
    Run.objects.filter(pk=run.pk).update(queued_at="2026-01-01T00:00:00Z")
    Node.objects.update(last_seen_at="2026-01-01T00:00:00Z")  # the node with the checkpoint comes no more
    rest = [*step(2, 0.6, tokens=600), *step(3, 0.75, tokens=900)]
    return attempted(run, [*resumed(run, 1), *rest, *ended(3, sealed_run.AFTER)], node="gpu-2")


@scenario
def retried(world: World) -> Run:
    """Failed for good after step 2, sealed, retried by a person from step 1, finished."""
    run = sealed_and_retried(world, reason="smaller neighbours now")
    rest = [*step(2, 0.6, tokens=600), *step(3, 0.75, tokens=900)]
    return attempted(run, [*resumed(run, 1), *rest, *ended(3, sealed_run.AFTER)])


@scenario
def retried_from_the_start(world: World) -> Run:
    run = sealed_and_retried(world, from_start=True)
    return attempted(run, [*began(run), *step(1, 0.4, tokens=310), *ended(1, sealed_run.AFTER)])


@scenario
def extended(world: World) -> Run:
    """40 of 100 right after three steps, 80 after a fourth."""
    run = world.launch()
    steps = [*step(1, 0.5), *step(2, 0.6), *step(3, 0.75), checkpoint(3)]
    record_seal(run=attempted(run, [*began(run), *steps, *ended(3, [1.0] * 40 + [0.0] * 60)]))
    run_extend(run=Run.objects.get(pk=run.pk), actor=world.alice, steps=1)
    run = Run.objects.get(pk=run.pk)
    return attempted(run, [*resumed(run, 3), *step(4, 0.8), *ended(4, sealed_run.AFTER)])


@scenario
def refused_after_two_steps(world: World) -> Run:
    return refused_to_resume(failed_after_two_steps(world.launch(), code="trainer_killed"), {})


@scenario
def refused_after_two_steps_with_totals_of_nothing(world: World) -> Run:
    return refused_to_resume(failed_after_two_steps(world.launch(), code="trainer_killed"), NOTHING)


@scenario
def refused_after_an_attempt_with_totals(world: World) -> Run:
    """What is reported of the work is of the attempt whose work stands."""
    totals = {**sealed_run.TOTALS, "samples": 16.0, "tokens": 610.0, "groups": 4.0}
    why = {"code": "out_of_memory", "message": "no memory"}
    outcome = records.Outcome(status="failed", steps_done=2, steps_planned=3, totals=totals, **why)
    return refused_to_resume(sealed_and_retried(world, outcome), NOTHING)


@scenario
def failed_while_it_resumed(world: World) -> Run:
    run = failed_after_two_steps(world.launch(), code="trainer_killed")
    return refused_to_resume(run, {}, records.Resumed(step=1, checkpoint="checkpoints/step-000001"))


@scenario
def cancelled_before_its_second_attempt(world: World) -> Run:
    """An end without an attempt of its own."""
    outcome = records.Outcome(status="failed", code="x", message="no memory", steps_done=2, steps_planned=3)
    run = sealed_and_retried(world, outcome, reason="once more")
    Run.objects.filter(pk=run.pk).update(queued_at=F("queued_at") + timedelta(seconds=1))
    run_cancel(run=run, actor=world.alice, reason="no, leave it")
    return Run.objects.get(pk=run.pk)
