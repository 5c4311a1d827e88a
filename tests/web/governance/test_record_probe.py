"""Where the reward is known to be brittle: a real probe's figures in the record, and who launched in spite of it."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import rfc8785

from cohort.accounts.models import User
from cohort.governance.services import record_seal
from cohort.governance.statements.services import statement_make
from cohort.lab.models import JobKind, JobState, LabJob, LaunchProbe, VerifierProbe
from cohort.runs.models import Run
from grpo_core.config_reward import RewardConfig
from grpo_core.data import Problem
from grpo_core.probe.run import probe_rubric
from grpo_core.rewards import Rubric, Runner
from tests import sealed_run
from tests.web.governance.record_reading import entry

pytestmark = pytest.mark.django_db(transaction=True)
Launch = Callable[..., Run]

PROBLEMS = [Problem(f"add-{a}", f"what is {a} + 7?", str(a + 7)) for a in range(10, 22)]
FORM_ONLY = {"components": [{"name": "form", "kind": "r1_format"}]}


def probed(run: Run, by: User, spec: dict[str, Any] | None = None) -> VerifierProbe:
    """A probe of the run's reward, or of `spec` told as its, as a worker would have sent it."""
    version = run.verifier_version
    rubric = Rubric(RewardConfig.model_validate(spec or version.spec))
    with Runner(rubric) as runner:
        report = probe_rubric(rubric, PROBLEMS, runner=runner, source="data").to_json()
    job = LabJob.objects.create(
        project=run.project,
        kind=JobKind.PROBE,
        version=version,
        spec=version.spec,
        spec_digest=version.digest,
        dataset=run.dataset,
        state=JobState.DONE,
        created_by=by,
    )
    return VerifierProbe.objects.create(
        version=version,
        dataset=run.dataset,
        job=job,
        report=report,
        digest=hashlib.sha256(rfc8785.dumps(report)).hexdigest(),
        verdict=report["verdict"],
        pays_wrong=report["pays_wrong"],
        by=by,
    )


@pytest.fixture
def ended(launch: Launch) -> Run:
    return sealed_run.finished(launch())


def test_the_figures_of_a_probe(ended: Run, alice: User) -> None:
    probe = probed(ended, alice)
    told = entry(record_seal(run=ended), "reward.brittleness")
    assert told.source == "measured"
    assert told.value["probe"]["digest"] == probe.digest
    assert told.value["override"] is None
    shares = told.value["probe"]["false_positive"]
    assert f"{shares['mistakes']} of {shares['n']:,}" in told.text
    names = {one["name"] for one in told.value["probe"]["classes"]}
    assert {one["name"] for one in probe.report["classes"]} == names
    assert "examples" not in told.value["probe"]["classes"][0]  # they hold problems of the dataset
    assert f"with {len(PROBLEMS)} problems of the dataset {ended.dataset.name}" in told.note


def test_who_launched_in_spite_of_it_and_why(ended: Run, alice: User) -> None:
    probe = probed(ended, alice, FORM_ONLY)
    assert probe.verdict == "pays_wrong"
    LaunchProbe.objects.create(
        run=ended,
        probe=probe,
        state="pays_wrong",
        pays_wrong=probe.pays_wrong,
        overridden=True,
        reason="only to teach the form first",
        by=alice,
    )
    told = entry(record_seal(run=ended), "reward.brittleness")
    override = told.value["override"]
    assert (override["by"], override["reason"]) == ("alice", "only to teach the form first")
    assert override["pays_wrong"] == probe.pays_wrong
    assert override["probe"] == probe.digest
    assert "alice launched it all the same: only to teach the form first" in told.note
    assert told.text.startswith("wrong answers are paid: ")


@pytest.mark.parametrize(("audience", "shown"), [("public", True), ("internal", False)])
def test_words_of_a_person_stand_beside_the_figures(ended: Run, alice: User, audience: str, shown: bool) -> None:
    probed(ended, alice)
    statement_make(run=ended, actor=alice, field="reward.brittleness", text="digits in words fail", audience=audience)
    told = entry(record_seal(run=ended), "reward.brittleness")
    assert told.source == "measured"
    assert (told.value["words"] == "digits in words fail") is shown
    assert ("digits in words fail" in told.text + told.note) is shown
    assert "alice put its weak places into words" in told.note


def test_without_a_probe_it_says_so(ended: Run) -> None:
    told = entry(record_seal(run=ended), "reward.brittleness")
    assert told.source == "not stated"
    assert told.note.startswith("No probe of the verifier was run.")


@pytest.mark.parametrize(
    ("components", "value", "text"),
    [
        ([("a", "exact", 1.0)], "rule-based", "rules only; no model judged"),
        ([("a", "judge", 1.0)], "model-based", "models judged: a (judge)"),
        (
            [("a", "exact", 1.0), ("b", "judge", 0.5)],
            "rule-based and model-based",
            "models judged: b (judge); the rest",
        ),
        ([("a", "exact", 1.0), ("b", "judge", 0.0)], "rule-based", "rules only"),
    ],
)
def test_rule_or_model_is_told_by_the_kinds(
    ended: Run, components: list[tuple[str, str, float]], value: str, text: str
) -> None:
    judge = {"base_url": "https://judge.example/v1", "model": "m"}
    ended.config["reward"]["components"] = [
        {"name": name, "kind": kind, "weight": weight, "params": judge if kind == "judge" else {}}
        for name, kind, weight in components
    ]
    ended.config["eval"]["success_component"] = None
    Run.objects.filter(pk=ended.pk).update(config=ended.config)
    ended.refresh_from_db()
    told = entry(record_seal(run=ended), "reward.rule_or_model")
    assert told.value == value
    assert told.text.startswith(text)
