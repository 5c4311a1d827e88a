"""Runs that have ended in the ways that a record must tell apart, each with one thing or a few that are its own."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from cohort.accounts.models import User
from cohort.catalog.models import BaseModel
from cohort.contamination.models import LaunchOverlap
from cohort.lab.models import JobKind, JobState, LabJob, LaunchEstimate, LaunchProbe, VerifierProbe
from cohort.launch.creation import run_create, run_submit
from cohort.records.statements.services import flag_override, statement_make
from cohort.runs.base_models import checkpoint_register
from cohort.runs.models import Checkpoint, ImportedResult, Run, RunEvent, StepMetric
from cohort.runs.services import run_cancel, run_pause, run_resume
from grpo_core.config.reward import RewardConfig
from grpo_core.data import Problem
from grpo_core.probe.run import probe_rubric
from grpo_core.records import types as records
from grpo_core.rewards import Rubric, Runner
from tests.factories import sealed_run
from tests.factories.documents import ROWS
from tests.factories.runs import UNPROBED, add_checkpoint
from tests.factories.sealed_run import attempted, step
from tests.tables import cases
from tests.web.records.conftest import World

FORM_ONLY = {"components": [{"name": "form", "kind": "r1_format"}]}


SCENARIOS: dict[str, Callable[[World], Run]] = {}


def scenario(make: Callable[[World], Run]) -> Callable[[World], Run]:
    SCENARIOS[make.__name__] = make
    return make


def settings(**parts: dict[str, Any]) -> dict[str, Any]:
    whole = {name: part for name, part in sealed_run.SETTINGS.items() if name != "preset"}
    return {**{name: {**whole.get(name, {}), **parts.get(name, {})} for name in {**whole, **parts}}, "preset": "demo"}


def changed(reported: list[records.Record], kind: str, **fields: Any) -> list[records.Record]:
    """The records with those of this kind changed; a field that is a dict is merged."""

    def merged(old: Any, new: Any) -> Any:
        return {**old, **new} if old and isinstance(new, dict) else new

    def updated(record: records.Record) -> records.Record:
        return record.model_copy(update={name: merged(getattr(record, name), new) for name, new in fields.items()})

    return [updated(record) if record.kind == kind else record for record in reported]


def never_began(run: Run) -> Run:
    """Its trainer ended before it described its inputs."""
    return attempted(run, [], end="failed", code="model_error", message="no such model folder")


# ---------------------------------------------------------------------- one attempt


@scenario
def finished(world: World) -> Run:
    return sealed_run.finished(world.launch())


@scenario
def prompt_shown_as_the_policy_saw_it(world: World) -> Run:
    """A conversation whose answer the prompt begins; one token of it is not listed."""
    run = world.launch()
    example = {"problem_id": "add-1", "text": "<|user|>1 + 7<|assistant|><think>", "answer_starts": 3, "left_out": 1}
    chat = {"source": "tokenizer", "sha256": "c" * 64, "system": None, "kwargs": {}, "prefill": "<think>"}
    train = sealed_run.manifest(run).data["train"] | {
        "chat": chat,
        "prompt_example": example | {"tokens": [256, 49, 257, 60]},
    }
    return sealed_run.finished(run, changed(sealed_run.whole(run), "manifest", data={"train": train}))


@scenario
def failed_before_its_first_record(world: World) -> Run:
    return never_began(world.launch())


@scenario
def failed_after_one_step(world: World) -> Run:
    run = world.launch()
    why = {"code": "trainer_died", "message": "The trainer was killed by signal 9"}
    return attempted(run, sealed_run.whole(run)[:108], end="failed", **why)


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
    reported = sealed_run.whole(run, after_protocol={**sealed_run.PROTOCOL, "temperature": 1.0})
    weights = {"weights": {"model.safetensors": "0" * 64}}
    return sealed_run.finished(run, changed(reported, "manifest", model=weights))


@scenario
def adapters_as_base(world: World) -> Run:
    """The registered weights are the adapters'; the manifest has those of the model below them too."""
    run = world.launch()
    weights = {"adapter_model.safetensors": {"size": 1, "sha256": "a" * 64}}
    run.base_model.adapter = {"rank": 4, "alpha": 8.0, "base": "base", "revision": None}
    run.base_model.weights = weights
    run.base_model.save()
    adapter = {"adapter_model.safetensors": "a" * 64, "adapter_config.json": "b" * 64}
    model = {"weights": {"model.safetensors": "c" * 64}, "adapter": adapter}
    return sealed_run.finished(run, changed(sealed_run.whole(run), "manifest", model=model))


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
    run_submit(run=run, actor=world.oscar, probe_override=UNPROBED)
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
    reported = changed(sealed_run.whole(run), "outcome", totals=totals or {})
    reported = changed(reported, "manifest", platform={"device": device or "cpu"})
    kept = run.config["traces"]["groups_per_step"] > 0
    return sealed_run.finished(run, [record for record in reported if kept or record.kind != "group"])


for case in cases("records/settings_of_scenarios", "settings", "heldout", "began", "device", "totals"):
    SCENARIOS[str(case.id)] = partial(lambda values, world: _with_settings(world, *values), case.values)


def _judged(weights: tuple[float, ...], world: World) -> Run:
    """Rewards by a model, then by a rule, with these weights."""
    judge = {"base_url": "https://judge.example/v1", "model": "m"}
    kinds = [{"name": "b", "kind": "judge", "params": judge}, {"name": "a", "kind": "exact"}]
    run = finished(world)
    run.config["reward"]["components"] = [
        {**component, "weight": weight} for component, weight in zip(kinds, weights, strict=False)
    ]
    run.save(update_fields=["config"])
    return run


for name, weights in (("", (1.0,)), ("_in_part", (0.5, 1.0)), ("_without_weight", (0.0, 1.0))):
    SCENARIOS[f"judged_by_a_model{name}"] = partial(_judged, weights)


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
    scores = {"refusal_calibration": [1.0] * 10 + [0.0] * 10}
    run = world.launch(suites=list(scores))
    return sealed_run.finished(run, sealed_run.with_suites(run, scores, scores))


@scenario
def suite_run_once_and_scored_by_free_text(world: World) -> Run:
    """A suite of any category may have any scorer: one that asks for free text is not of multiple choice."""
    run = world.launch(suites=["harmful_capability"])
    run.config["eval"]["suites"][0] |= {"scorer": {"kind": "contains", "params": {}}}
    run.save(update_fields=["config"])
    return sealed_run.finished(run, sealed_run.with_suites(run, {"harmful_capability": [0.0] * 9}, {}))


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
    run = sealed_run.finished(second, changed(sealed_run.whole(second), "manifest", model={"provenance": None}))
    Checkpoint.objects.filter(run=second).update(at=sealed_run.AT + timedelta(seconds=1))
    return run


@scenario
def trained_from_a_registered_checkpoint(world: World) -> Run:
    """Whose own run began from a folder."""
    first = world.launch(name="the first")
    sealed_run.sealed(first)
    checkpoint = add_checkpoint(first.attempts.get(), 2, stored=True)
    files = {
        name: {"size": 96, "sha256": digit * 64} for name, digit in (("policy.safetensors", "6"), ("state.json", "7"))
    }
    Checkpoint.objects.filter(pk=checkpoint.pk).update(files=files)
    base = checkpoint_register(checkpoint=checkpoint, actor=world.alice, name="the first at 2")
    second = world.launch(name="the second", base_model=base)
    began = {"weights": {"model.safetensors": "5" * 64}, "checkpoint": {name: files[name]["sha256"] for name in files}}
    return sealed_run.finished(second, changed(sealed_run.whole(second), "manifest", model=began | {"source": "input"}))


@scenario
def base_model_without_digests(world: World) -> Run:
    run = world.launch()
    BaseModel.objects.filter(pk=run.base_model_id).update(weights={}, provenance=None)
    return never_began(run)


# ---------------------------------------------------------------------- what people and measurements add


ANSWERS: dict[str, dict[str, Any]] = {
    case.values[0]: case.values[1] for case in cases("records/answers", "field", "answer")
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
    flag_override(run=run, actor=world.alice, flag="entropy_collapse", reason="expected at this length")
    reported = []
    for record in sealed_run.whole(run):
        if getattr(record, "phase", "") == "evaluating_after":
            for number, entropy in enumerate([2.0] + [1.0] * 8 + [0.1], start=1):
                reported += changed(step(number, 0.5), "step", metrics={"entropy": entropy})
        if record.kind not in ("step", "commitments", "group"):
            reported.append(record)
    return sealed_run.finished(run, reported)


def _job(run: Run, by: User, kind: JobKind, **more: Any) -> LabJob:
    done = {"spec": {}, "spec_digest": "", "state": JobState.DONE}
    return LabJob.objects.create(project=run.project, kind=kind, created_by=by, **done, **more)


@scenario
def estimated_without_its_memory(world: World) -> Run:
    run, estimate = finished(world), ROWS["estimate"]
    job = _job(run, world.alice, JobKind.ESTIMATE, result=estimate)
    LaunchEstimate.objects.create(run=run, job=job, estimate=estimate, by=world.alice)
    return run


@scenario
def estimated(world: World) -> Run:
    """Half a second a step; they took 0.4, 0.3 and 9, and 1 to 3 GB."""
    run = estimated_without_its_memory(world)
    for row, seconds in zip(StepMetric.objects.filter(run=run).order_by("step"), (0.4, 0.3, 9.0), strict=True):
        row.seconds, row.metrics = {"total": seconds}, {**row.metrics, "memory/peak_bytes": 1e9 * row.step}
        row.save(update_fields=["seconds", "metrics"])
    return run


def _probed(world: World, audience: str, spec: dict[str, Any] | None = None) -> tuple[Run, VerifierProbe]:
    """A finished run, a probe of `spec`, said to be of its verifier, on two of its problems, and what is stated."""
    run, by = finished(world), world.alice
    version = run.verifier_version
    rubric = Rubric(RewardConfig.model_validate(spec or version.spec))
    with Runner(rubric) as runner:
        problems = [Problem("a", "1 + 7", "8"), Problem("b", "3 + 4", "7")]
        report = probe_rubric(rubric, problems, runner=runner, source="data").to_json()
    of = {"version": version, "dataset": run.dataset}
    result = {"verdict": report["verdict"], "pays_wrong": report["pays_wrong"], "digest": "d" * 64}
    job = _job(run, by, JobKind.PROBE, **of)
    statement_make(run=run, actor=by, field="reward.brittleness", text="digits in words", audience=audience)
    return run, VerifierProbe.objects.create(job=job, report=report, by=by, **result, **of)


@scenario
def verifier_probed(world: World) -> Run:
    return _probed(world, "internal")[0]


@scenario
def launched_though_wrong_answers_are_paid(world: World) -> Run:
    run, probe = _probed(world, "public", FORM_ONLY)
    why = {"state": "pays_wrong", "pays_wrong": probe.pays_wrong, "reason": "only to teach the form first"}
    LaunchProbe.objects.create(run=run, probe=probe, overridden=True, by=world.alice, **why)
    return run
