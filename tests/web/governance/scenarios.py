"""Runs that have ended in the ways that a record must tell apart, each with one thing or a few that are its own."""

import json
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from django.db.models import F

from cohort.accounts.models import User
from cohort.catalog.models import BaseModel
from cohort.contamination.models import LaunchOverlap
from cohort.governance.services import record_seal
from cohort.governance.statements.services import flag_override, statement_make
from cohort.lab.models import JobKind, JobState, LabJob, LaunchEstimate, LaunchProbe, VerifierProbe
from cohort.runs.models import Checkpoint, ImportedResult, Node, Run, RunEvent, StepMetric
from cohort.runs.services import run_cancel, run_create, run_extend, run_pause, run_resume, run_retry, run_submit
from grpo_core import records
from grpo_core.config_reward import RewardConfig
from grpo_core.data import Problem
from grpo_core.metrics import Totals
from grpo_core.probe.run import probe_rubric
from grpo_core.rewards import Rubric, Runner
from tests.factories import sealed_run
from tests.factories.documents import ROWS
from tests.factories.sealed_run import checkpoint, evaluation, step
from tests.tables import cases
from tests.web.governance.conftest import World

FORM_ONLY = {"components": [{"name": "form", "kind": "r1_format"}]}
NOTHING = {**Totals().as_dict(), "seconds": 2.0}
"""Totals of an older trainer that ended before it had taken up what was done before it; today's sends none."""


SCENARIOS: dict[str, Callable[[World], Run]] = {}


def scenario(make: Callable[[World], Run]) -> Callable[[World], Run]:
    SCENARIOS[make.__name__] = make
    return make


def settings(**parts: dict[str, Any]) -> dict[str, Any]:
    whole = {name: part for name, part in sealed_run.SETTINGS.items() if name != "preset"}
    return {**{name: {**whole.get(name, {}), **parts.get(name, {})} for name in {**whole, **parts}}, "preset": "demo"}


def changed(found: list[records.Record], kind: str, **fields: Any) -> list[records.Record]:
    """The records with those of this kind changed; a field that is a dict is merged."""
    made = []
    for one in found:
        if one.kind == kind:
            merged = {
                name: {**getattr(one, name), **new} if isinstance(new, dict) and getattr(one, name) else new
                for name, new in fields.items()
            }
            one = one.model_copy(update=merged)
        made.append(one)
    return made


def never_began(run: Run) -> Run:
    """Its trainer ended before it described its inputs."""
    return sealed_run.finish(sealed_run.claim(run), end="failed", code="model_error", message="no such model folder")


# ---------------------------------------------------------------------- one attempt


@scenario
def finished(world: World) -> Run:
    return sealed_run.finished(world.launch())


@scenario
def failed_before_its_first_record(world: World) -> Run:
    return never_began(world.launch())


@scenario
def failed_after_one_step(world: World) -> Run:
    run = world.launch()
    attempt = sealed_run.claim(run)
    sealed_run.ingest(attempt, sealed_run.whole(run)[:108])
    return sealed_run.finish(attempt, end="failed", code="trainer_died", message="The trainer was killed by signal 9")


@scenario
def cancelled(world: World) -> Run:
    run = world.launch()
    attempt = sealed_run.claim(run)
    sealed_run.ingest(attempt, sealed_run.whole(run)[:3])
    run_cancel(run=run, actor=world.alice, reason="wrong dataset")
    return sealed_run.finish(attempt, end="cancelled", message="stopped")


@scenario
def other_weights_and_other_protocol(world: World) -> Run:
    run = world.launch()
    told = sealed_run.whole(run, after_protocol={**sealed_run.PROTOCOL, "temperature": 1.0})
    weights = {"weights": {"model.safetensors": "0" * 64}}
    return sealed_run.finished(run, changed(told, "manifest", model=weights))


@scenario
def launched_by_another_and_steered(world: World) -> Run:
    """A clone, defined by alice and launched by oscar, paused and resumed. What a trainer says of steering, as older
    platforms stored it, is in no record."""
    first = world.launch(name="first try")
    sealed_run.finished(first)
    run = run_create(
        project=first.project,
        actor=world.alice,
        name="draft",
        base_model=first.base_model,
        dataset=first.dataset,
        eval_dataset=first.eval_dataset,
        verifier_version=first.verifier_version,
        settings=sealed_run.SETTINGS,
    )
    Run.objects.filter(pk=run.pk).update(cloned_from=first)
    run_submit(run=run, actor=world.oscar)
    run_pause(run=run, actor=world.alice, reason="not yet")
    run_resume(run=run, actor=world.alice)
    for kind in ("retried", "extended", "pause_asked"):
        RunEvent.objects.create(run=run, at=sealed_run.AT, actor="trainer", kind=kind, message="forged")
    return sealed_run.finished(Run.objects.get(pk=run.pk))


# ---------------------------------------------------------------------- settings


def _with_settings(world: World, parts: Any, heldout: Any, began: Any, device: Any, totals: Any) -> Run:
    run = world.launch(settings=settings(**parts), **({"heldout": None} if heldout is False else {}))
    if began is False:
        return never_began(run)
    told = changed(sealed_run.whole(run), "outcome", totals=totals or {})
    told = changed(told, "manifest", platform={"device": device or "cpu"})
    kept = run.config["traces"]["groups_per_step"] > 0
    return sealed_run.finished(run, [one for one in told if kept or one.kind != "group"])


for case in cases("governance/settings_of_scenarios", "settings", "heldout", "began", "device", "totals"):
    SCENARIOS[str(case.id)] = partial(lambda values, world: _with_settings(world, *values), case.values)


def _judged(weights: tuple[float, ...], world: World) -> Run:
    """Rewards by a model, then by a rule, with these weights."""
    judge = {"base_url": "https://judge.example/v1", "model": "m"}
    kinds = [{"name": "b", "kind": "judge", "params": judge}, {"name": "a", "kind": "exact"}]
    run = finished(world)
    run.config["reward"]["components"] = [
        {**component, "weight": weight} for component, weight in zip(kinds, weights, strict=False)
    ]
    run.config["eval"]["success_component"] = None
    Run.objects.filter(pk=run.pk).update(config=run.config)
    return run


SCENARIOS["judged_by_a_model"] = partial(_judged, (1.0,))
SCENARIOS["judged_by_a_model_in_part"] = partial(_judged, (0.5, 1.0))
SCENARIOS["judged_by_a_model_without_weight"] = partial(_judged, (0.0, 1.0))


# ---------------------------------------------------------------------- suites and overlaps


@scenario
def suites(world: World) -> Run:
    """One better, one that more of is worse, one of 20 items that changes nothing, one in slices with two items that
    were trained on."""
    before = {
        "hallucination": [1.0] * 30 + [0.0] * 30,
        "harmful_capability": [0.0] * 100,
        "refusal_calibration": [1.0] * 10 + [0.0] * 10,
        "multilingual": [1.0] * 10 + [0.0] * 10,
        "tool_use": [1.0] * 60,
    }
    after = {**before, "hallucination": [1.0] * 60, "harmful_capability": [1.0] * 40 + [0.0] * 60}
    run = world.launch(suites=list(before))
    overlap = {
        "heldout": sealed_run.touched(items=100),
        "multilingual": sealed_run.touched("multilingual-0", "multilingual-1", items=20),
    }
    slices = {"multilingual": ["de", "sw"]}
    return sealed_run.finished(run, sealed_run.with_suites(run, before, after, slices=slices, overlap=overlap))


@scenario
def suite_undecided(world: World) -> Run:
    run, scores = world.launch(suites=["refusal_calibration"]), {"refusal_calibration": [1.0] * 10 + [0.0] * 10}
    return sealed_run.finished(run, sealed_run.with_suites(run, scores, scores))


@scenario
def suite_run_once_and_scored_by_free_text(world: World) -> Run:
    """A suite of any category may have any scorer: one that asks for free text is not of multiple choice."""
    run = world.launch(suites=["harmful_capability"])
    config = json.loads(json.dumps(run.config))
    config["eval"]["suites"][0] |= {"scorer": {"kind": "contains", "params": {}}}
    Run.objects.filter(pk=run.pk).update(config=config)
    told = sealed_run.with_suites(run, {"harmful_capability": [0.0] * 9}, {})
    return sealed_run.finished(run, told)


@scenario
def overlap_known_at_launch(world: World) -> Run:
    """And a result that another tool is said to have measured."""
    run = world.launch()
    pair = {"with": "held out", "kind": "held-out dataset", "id": 1, "state": "found", "items": 2, "touched": 1}
    LaunchOverlap.objects.update_or_create(run=run, defaults={"by": world.alice, "pairs": [pair], "acknowledged": True})
    ImportedResult.objects.create(run=run, by=world.alice, **ROWS["imported"])
    return sealed_run.finished(run)


@scenario
def overlap_of_options_searched(world: World) -> Run:
    run, report = world.launch(), sealed_run.touched(items=100)
    report["counts"]["options"] = 0
    return sealed_run.finished(run, sealed_run.with_suites(run, {}, {}, overlap={"heldout": report}))


# ---------------------------------------------------------------------- lineage


@scenario
def trained_from_an_earlier_run(world: World) -> Run:
    """It learned nothing: what it wrote is what it began from, and its node's clock is behind."""
    first = world.launch(name="the first")
    sealed_run.sealed(first)
    base = BaseModel.objects.create(
        project=first.project,
        name="output",
        path="output",
        weights={"model.safetensors": {"size": 96, "sha256": "9" * 64}},  # what the first run wrote
        weights_digest="8" * 64,
    )
    second = world.launch(name="the second", base_model=base)
    ended = sealed_run.finished(second, changed(sealed_run.whole(second), "manifest", model={"provenance": None}))
    Checkpoint.objects.filter(run=second).update(at=sealed_run.AT + timedelta(seconds=1))
    return ended


@scenario
def base_model_without_digests(world: World) -> Run:
    run = world.launch()
    BaseModel.objects.filter(pk=run.base_model_id).update(weights={}, provenance=None)
    return never_began(run)


# ---------------------------------------------------------------------- several attempts and ends


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


def ended(steps: int, scores: list[float]) -> list[records.Record]:
    return [
        records.PhaseStarted(phase="evaluating_after", total=100),
        *evaluation("after", scores, sealed_run.PROTOCOL),
        checkpoint(steps, final=True),
        records.Outcome(
            status="finished",
            message=f"Finished {steps} steps.",
            steps_done=steps,
            steps_planned=steps,
            totals=sealed_run.TOTALS,
            final_checkpoint="checkpoints/final",
        ),
    ]


def failed_after_two_steps(run: Run, *more: records.Record, code: str = "out_of_memory") -> Run:
    """Two steps, 610 tokens, a checkpoint after the first; ended for good unless `code` is one that is tried again."""
    first = sealed_run.claim(run)
    told = [*step(1, 0.5, tokens=300), checkpoint(1), *step(2, 0.1, tokens=610)]
    sealed_run.ingest(first, [*began(run), *told, *more])
    return sealed_run.finish(first, end="failed", code=code, message="it broke")


def refused_to_resume(run: Run, totals: dict[str, float], *more: records.Record) -> Run:
    """Another attempt, which found other weights than those that the checkpoint was trained from."""
    attempt = sealed_run.claim(run)
    manifest = sealed_run.manifest(run)
    manifest.model["weights"] = {"model.safetensors": "f" * 64}
    why = {"code": "checkpoint_error", "message": "the base model's weights have changed"}
    refused = records.Outcome(status="failed", steps_done=0, steps_planned=3, totals=totals, **why)
    sealed_run.ingest(attempt, [manifest, *more, refused])
    return sealed_run.finish(attempt, end="failed", **why)


@scenario
def resumed_on_another_node(world: World) -> Run:
    """Killed after step 3 with a checkpoint of step 1, resumed from there elsewhere, finished. The first attempt held
    two GPUs."""
    run = world.launch()
    first = sealed_run.claim(run)
    told = [*step(1, 0.5, tokens=300), checkpoint(1), *step(2, 0.1, tokens=610), *step(3, 0.2, tokens=950)]
    sealed_run.ingest(first, [*began(run), *told])
    run = sealed_run.finish(first, end="failed", code="trainer_killed", message="The trainer was killed by SIGKILL")
    run.attempts.update(gpus=2)
    Run.objects.filter(pk=run.pk).update(queued_at="2026-01-01T00:00:00Z")
    Node.objects.update(last_seen_at="2026-01-01T00:00:00Z")  # the node with the checkpoint comes no more
    second = sealed_run.claim(run, node="gpu-2")
    rest = [*step(2, 0.6, tokens=600), *step(3, 0.75, tokens=900)]
    sealed_run.ingest(second, [*resumed(run, 1), *rest, *ended(3, sealed_run.AFTER)])
    return sealed_run.finish(second)


@scenario
def retried(world: World) -> Run:
    """Failed for good after step 2, sealed, retried by a person from step 1, finished."""
    run = failed_after_two_steps(world.launch())
    record_seal(run=run)
    run_retry(run=run, actor=world.alice, reason="smaller neighbours now")
    second = sealed_run.claim(run)
    rest = [*step(2, 0.6, tokens=600), *step(3, 0.75, tokens=900)]
    sealed_run.ingest(second, [*resumed(run, 1), *rest, *ended(3, sealed_run.AFTER)])
    return sealed_run.finish(second)


@scenario
def retried_from_the_start(world: World) -> Run:
    run = failed_after_two_steps(world.launch())
    record_seal(run=run)
    run_retry(run=run, actor=world.alice, from_start=True)
    second = sealed_run.claim(run)
    sealed_run.ingest(second, [*began(run), *step(1, 0.4, tokens=310), *ended(1, sealed_run.AFTER)])
    return sealed_run.finish(second)


@scenario
def extended(world: World) -> Run:
    """40 of 100 right after three steps, 80 after a fourth."""
    run = world.launch()
    first = sealed_run.claim(run)
    steps = [*step(1, 0.5), *step(2, 0.6), *step(3, 0.75), checkpoint(3)]
    sealed_run.ingest(first, [*began(run), *steps, *ended(3, [1.0] * 40 + [0.0] * 60)])
    run = sealed_run.finish(first)
    record_seal(run=run)
    run_extend(run=Run.objects.get(pk=run.pk), actor=world.alice, steps=1)
    run = Run.objects.get(pk=run.pk)
    second = sealed_run.claim(run)
    sealed_run.ingest(second, [*resumed(run, 3), *step(4, 0.8), *ended(4, sealed_run.AFTER)])
    return sealed_run.finish(second)


@scenario
def refused_after_two_steps(world: World) -> Run:
    return refused_to_resume(failed_after_two_steps(world.launch(), code="trainer_killed"), {})


@scenario
def refused_after_two_steps_with_totals_of_nothing(world: World) -> Run:
    return refused_to_resume(failed_after_two_steps(world.launch(), code="trainer_killed"), NOTHING)


@scenario
def refused_after_an_attempt_with_totals(world: World) -> Run:
    """What is told of the work is of the attempt whose work stands."""
    totals = {**sealed_run.TOTALS, "samples": 16.0, "tokens": 610.0, "groups": 4.0}
    why = {"code": "out_of_memory", "message": "no memory"}
    run = failed_after_two_steps(
        world.launch(), records.Outcome(status="failed", steps_done=2, steps_planned=3, totals=totals, **why)
    )
    record_seal(run=run)
    run_retry(run=run, actor=world.alice)
    return refused_to_resume(run, NOTHING)


@scenario
def failed_while_it_resumed(world: World) -> Run:
    run = failed_after_two_steps(world.launch(), code="trainer_killed")
    return refused_to_resume(run, {}, records.Resumed(step=1, checkpoint="checkpoints/step-000001"))


@scenario
def cancelled_before_its_second_attempt(world: World) -> Run:
    """An end without an attempt of its own."""
    outcome = records.Outcome(status="failed", code="x", message="no memory", steps_done=2, steps_planned=3)
    run = failed_after_two_steps(world.launch(), outcome)
    record_seal(run=run)
    run_retry(run=run, actor=world.alice, reason="once more")
    Run.objects.filter(pk=run.pk).update(queued_at=F("queued_at") + timedelta(seconds=1))
    run_cancel(run=run, actor=world.alice, reason="no, leave it")
    return Run.objects.get(pk=run.pk)


# ---------------------------------------------------------------------- what people and measurements add


ANSWERS: dict[str, dict[str, Any]] = {
    case.values[0]: case.values[1] for case in cases("governance/answers", "field", "answer")
}
"""An answer to every question."""


@scenario
def stated(world: World) -> Run:
    run = world.launch()
    for field, answer in ANSWERS.items():
        statement_make(run=run, actor=world.alice, field=field, **answer)
    return sealed_run.finished(run)


@scenario
def flagged(world: World) -> Run:
    """Entropy falls from 2 to a twentieth of it, which was accepted before."""
    run = world.launch(settings=settings(optim={"steps": 10}))
    told = [one for one in sealed_run.whole(run) if one.kind not in ("step", "commitments", "group")]
    place = next(at for at, one in enumerate(told) if getattr(one, "phase", "") == "evaluating_after")
    steps: list[records.Record] = []
    for number, entropy in enumerate([2.0] + [1.0] * 8 + [0.1], start=1):
        steps += changed(step(number, 0.5), "step", metrics={"entropy": entropy})
    flag_override(run=run, actor=world.alice, flag="entropy_collapse", reason="expected at this length")
    return sealed_run.finished(run, [*told[:place], *steps, *told[place:]])


def _job(run: Run, by: User, kind: JobKind, **more: Any) -> LabJob:
    done = {"spec": {}, "spec_digest": "", "state": JobState.DONE}
    return LabJob.objects.create(project=run.project, kind=kind, created_by=by, **done, **more)


def _estimated(world: World) -> Run:
    run = finished(world)
    told = ROWS["estimate"]
    job = _job(run, world.alice, JobKind.ESTIMATE, result=told)
    LaunchEstimate.objects.create(run=run, job=job, estimate=told, by=world.alice)
    return run


@scenario
def estimated(world: World) -> Run:
    """Half a second a step; they took 0.4, 0.3 and 9, and 1 to 3 GB."""
    run = _estimated(world)
    for row, seconds in zip(StepMetric.objects.filter(run=run).order_by("step"), (0.4, 0.3, 9.0), strict=True):
        row.seconds, row.metrics = {"total": seconds}, {**row.metrics, "memory/peak_bytes": 1e9 * row.step}
        row.save(update_fields=["seconds", "metrics"])
    return run


@scenario
def estimated_without_its_memory(world: World) -> Run:
    return _estimated(world)


def _probed(run: Run, by: User, spec: dict[str, Any]) -> VerifierProbe:
    """A probe of `spec`, said to be of the run's verifier, on three of its problems."""
    rubric, problems = (
        Rubric(RewardConfig.model_validate(spec)),
        [Problem("a", "1 + 7", "8"), Problem("b", "3 + 4", "7")],
    )
    with Runner(rubric) as runner:
        report = probe_rubric(rubric, problems, runner=runner, source="data").to_json()
    version = run.verifier_version
    of = {"version": version, "dataset": run.dataset}
    job = _job(run, by, JobKind.PROBE, **of)
    result = {"verdict": report["verdict"], "pays_wrong": report["pays_wrong"], "digest": "d" * 64}
    return VerifierProbe.objects.create(job=job, report=report, by=by, **result, **of)


@scenario
def verifier_probed(world: World) -> Run:
    run = finished(world)
    _probed(run, world.alice, run.verifier_version.spec)
    statement_make(run=run, actor=world.alice, field="reward.brittleness", text="digits in words", audience="internal")
    return run


@scenario
def launched_though_wrong_answers_are_paid(world: World) -> Run:
    run = finished(world)
    probe = _probed(run, world.alice, FORM_ONLY)
    LaunchProbe.objects.create(
        run=run,
        probe=probe,
        state="pays_wrong",
        pays_wrong=probe.pays_wrong,
        overridden=True,
        reason="only to teach the form first",
        by=world.alice,
    )
    statement_make(run=run, actor=world.alice, field="reward.brittleness", text="digits in words", audience="public")
    return run
